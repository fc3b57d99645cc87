"""The application of the tests of remote workers: `mainspring serve tests.web.remote_app:app --url URL`."""

from mainspring import Mainspring, Retry

app = Mainspring()
resize = app.remote_job("resize", queue="pictures", retry=Retry(max_attempts=5, base=0), timeout=600)
