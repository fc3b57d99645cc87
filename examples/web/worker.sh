#!/bin/sh
# A worker of Mainspring with curl and jq, for job types that are declared with app.remote_job. It runs one job at a
# time, and says by heartbeats that it is alive. docs/http-workers.md describes the protocol.
#
#     mainspring serve pictures:app --http 127.0.0.1:8400
#     MAINSPRING_TOKEN=$(mainspring tokens create shell --scope work --app pictures:app) sh worker.sh [JOBS]
#
# It ends after JOBS jobs, or never.

set -eu
left=${1:--1}
api=${MAINSPRING_API:-http://127.0.0.1:8400}/api/v1

folder=$(mktemp -d)
beating=
trap 'leave; rm -r "$folder"' EXIT
trap 'exit 1' HUP INT TERM
echo "Authorization: Bearer ${MAINSPRING_TOKEN:?make one: mainspring tokens create shell --scope work}" >"$folder/token"

# Every request can be repeated safely, so curl repeats one whose answer got lost.
call() {
    curl --silent --show-error --fail-with-body --retry 20 --retry-all-errors --retry-max-time 60 \
        --header "@$folder/token" --header 'Content-Type: application/json' "$@"
}

# Send heartbeats with the job that runs, until the process is killed. If the job must stop, end its handler.
beat() {
    while sleep "$every"; do
        answer=$(call "$worker/heartbeat" --data "{\"jobs\": [$1]}") || continue
        case $(printf '%s' "$answer" | jq --raw-output '.jobs[0].state') in
        stop | lost) kill "$2" 2>"$folder/ended" || true ;;
        esac
    done
}

stop_beating() {
    test -z "$beating" || kill "$beating" 2>"$folder/ended" || true
    beating=
}

leave() {
    stop_beating
    test -z "${worker:-}" || call --request DELETE "$worker" >"$folder/left" || true
}

# The handler: gets the arguments as JSON, prints the result as JSON. Its status says whether it has succeeded.
resize() {
    printf '%s' "$1" | jq --compact-output '{file, width, by: "shell"}'
}

enrolled=$(call "$api/workers" --data '{"name": "shell", "types": ["resize"], "lease": 30}')
worker=$api/workers/$(printf '%s' "$enrolled" | jq .number)
every=$(printf '%s' "$enrolled" | jq .heartbeat_every)
echo "enrolled: $worker"

while [ "$left" -ne 0 ]; do
    claimed=$(call "$worker/claim" --data '{"jobs": 1, "wait": 5}')
    case $(printf '%s' "$claimed" | jq --raw-output .direction) in
    terminate) break ;;
    quiet) sleep "$every" ;; # a claim is answered at once then
    esac
    job=$(printf '%s' "$claimed" | jq --compact-output '.jobs[0] // empty')
    test -n "$job" || continue
    key=$(printf '%s' "$job" | jq --compact-output '{id, fencing_token}')
    resize "$(printf '%s' "$job" | jq --compact-output .arguments)" >"$folder/result" 2>"$folder/error" &
    handler=$!
    beat "$key" "$handler" &
    beating=$!
    if wait "$handler"; then
        end=$(printf '%s' "$key" |
            jq --slurpfile result "$folder/result" '. + {outcome: "completed", result: $result[0]}')
    else
        end=$(printf '%s' "$key" | jq --rawfile error "$folder/error" '. + {outcome: "failed", error: $error}')
    fi
    stop_beating
    call "$worker/settle" --data "{\"jobs\": [$end]}" || echo " (the lease is lost)"
    echo
    left=$((left - 1))
done
