"""Callbacks: jobs without Python code, which are HTTP requests to allowed URLs.

`policy.py` has the settings, `allow_list.py` and `addresses.py` decide what may be called, `declaring.py` declares
job types, `delivery.py` makes one attempt, and `client.py` sends requests.
"""
