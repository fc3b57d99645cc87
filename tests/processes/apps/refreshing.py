"""A process that submits refreshes of all keys when it is told `go`, and says the id of each."""

import sys

from tests.processes.apps.policies import app, refresh
from tests.processes.ledger import say

if __name__ == "__main__":
    keys = [f"key{number}" for number in range(int(sys.argv[1]))]
    app.counts()  # opened before it counts
    say("ready")
    for rounds in sys.stdin:
        for _ in range(int(rounds)):
            for key in keys:
                say(f"submitted {key} {refresh.submit(key).id}")
        say("done")
    app.close()
