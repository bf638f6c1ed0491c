#!/bin/sh
# Write the data of this folder: make_data.sh CHECKOUT PYTHON, with the checkout in /srv/proctor.
# Run once, at commit 19b7d99. Do not run it again to make a test pass: see README.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# The same path and host name on every machine: a run folder records both.
place=/srv/shop
[ "$(hostname)" = builder ] ||
    exec unshare -u sh -c 'hostname builder; exec "$@"' - "$here/make_data.sh" "$@"
python=$2
export PYTHONPATH="$1/src" HOME=/srv/home USER=tester LOGNAME=tester XDG_DATA_HOME="$place/data"
export OPENAI_API_KEY=mock OPENAI_BASE_URL=http://127.0.0.1:40123/v1 PYTHONDONTWRITEBYTECODE=1
proctor() { "$python" -m proctor "$@" || echo "exit code $?: proctor $*"; }
rm -rf "$place"
cp -r "$here/project" "$place"
cd "$place"

# Two finished runs: the second has a worse agent. The first records a cassette.
"$python" -m proctor mock-llm script.yaml --port 40123 &
mock=$!
sleep 5
proctor run shop.yaml --quiet --seed 1 --max-retries 0 --record shop.cassette.jsonl
SHOP_VERSION=2 proctor run shop.yaml --quiet --seed 1 --max-retries 0
proctor run ask.yaml --quiet --record ask.cassette.jsonl
rm -r results/ask
kill "$mock"
first=$(echo results/shop/*_001)
proctor tag "$first" main
proctor annotate "$first" "the calendar was down"
proctor annotate "$first" opening/hasty/0/1 "not the agent's fault"

# Two unfinished runs: one whose process was killed (by its agent), one stopped by a limit.
SHOP_DIES_AT=H57 proctor run quick.yaml --quiet --seed 1 --concurrency 1
proctor run mutualism.hidden_dependency --agent random --seeds 3 --trials 1 --name meadow \
    --max-trials 1 --concurrency 1 --quiet

proctor save quick.yaml --version v1

# A store of live traces: every third trace of the first run, sent over OTLP and evaluated.
proctor trace convert "$first" --to otlp-json -o spans.json
"$python" -c 'import json
spans = json.load(open("spans.json"))
spans["resourceSpans"] = spans["resourceSpans"][::3]
json.dump(spans, open("spans.json", "w"))'
"$python" -m proctor serve --port 40124 --store sqlite:///traces.db --readers 0 \
    --evaluate --quiet-after 1s &
serve=$!
sleep 8
curl -sS -H 'content-type: application/json' --data-binary @spans.json \
    http://127.0.0.1:40124/v1/traces
sleep 10
kill -INT "$serve"
wait "$serve" || true
rm spans.json

# A built scenario in the store of scenarios.
proctor build mutualism.hidden_dependency --seed 7 --no-cache -o meadow
proctor store meadow-7 meadow
rm -r meadow

rm -rf "$here/project"
cp -r "$place" "$here/project"
