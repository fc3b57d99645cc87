"""An application whose job type `resize` is run by workers in other languages: worker.mjs and worker.sh.

    mainspring serve pictures:app --http 127.0.0.1:8400

It declares the job type. It does not run it: `POST /api/v1/workers` lets a program in any language do that.
"""

from mainspring import Mainspring, Retry

app = Mainspring("sqlite:///pictures.db")

resize = app.remote_job("resize", queue="pictures", retry=Retry(max_attempts=3, base=1), timeout=600)

if __name__ == "__main__":
    for width in (100, 200, 400):
        job = resize.submit(file="cat.png", width=width)
        print(f"submitted {job.id}: {width} pixels")
