#!/bin/sh
# A session with curl: a token, then submit, read, list, cancel, a batch, and the events of a job.
#
#     mainspring run flask_shop:app --http 127.0.0.1:8400    # in another terminal, in the same folder
#     sh curl.sh 42                                          # the number of an order; each number once
#
# MAINSPRING_API is the address of the server, MAINSPRING_TOKEN a token that you have already.

set -eu
order=${1:?give the number of an order, such as 42}
api=${MAINSPRING_API:-http://127.0.0.1:8400}/api/v1

folder=$(mktemp -d)
stream=
trap 'rm -r "$folder"; test -z "$stream" || kill "$stream"' EXIT
trap 'exit 1' HUP INT TERM

echo "== a token that may submit, read and cancel, for a day"
token=${MAINSPRING_TOKEN:-$(mainspring tokens create "curl-$order" --scope submit --scope read --scope operate \
    --expires 1d --app flask_shop:app)}
echo "Authorization: Bearer $token" >"$folder/token" # not an argument of curl: all users of a machine can read those

call() {
    curl --silent --show-error --fail-with-body --retry 5 --header "@$folder/token" "$@"
    echo
}

post() {
    call --header 'Content-Type: application/json' "$@"
}

echo "== submit: in half an hour the order is canceled"
post "$api/jobs" --header "Idempotency-Key: place-$order" --data @- <<END
{"type": "cancel_order", "arguments": {"order_id": $order}, "delay": 1800, "id": "order-$order"}
END

echo "== read it, and why it does not run yet"
call "$api/jobs/order-$order"
call "$api/jobs/order-$order/explain"

echo "== list: the jobs of this order that wait"
call --get "$api/jobs" --data status=PENDING --data "argument.order_id=$order"

echo "== cancel: the order is paid"
post "$api/jobs/order-$order/cancel" --data '{}'

echo "== a batch: one job in each line"
call "$api/jobs/batch" --header 'Content-Type: application/x-ndjson' --header "Idempotency-Key: prices-$order" \
    --data-binary @- <<END
{"type": "price_of", "arguments": {"order_id": $order}}
{"type": "price_of", "arguments": {"order_id": $((order + 1))}, "priority": "BEST_EFFORT"}
END

echo "== events: follow a job from its submit to its end"
mkfifo "$folder/events"
curl --silent --no-buffer --header "@$folder/token" "$api/events?job=price-$order" >"$folder/events" &
stream=$!
exec 3<"$folder/events" # waits until curl has opened it
read -r _ <&3 # the first line: the stream has begun
post "$api/jobs" --data @- <<END
{"type": "price_of", "arguments": {"order_id": $order}, "id": "price-$order"}
END
sed -E '/"kind":"(completed|failed|canceled)"/q' <&3
