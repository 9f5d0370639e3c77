#!/usr/bin/env bash
# One question with curl. Needs OPENAI_BASE_URL (…/v1), OPENAI_API_KEY, MODEL.
set -euo pipefail
body=$(printf '{"model": "%s", "messages": [{"role": "user", "content": "%s"}], "max_tokens": 48, "temperature": 0}' \
    "${MODEL:-GLM-5.3-Flash-EXL3}" "What is the capital of France?")
# The key comes from a file that curl reads, so that it stands in no process list.
curl --silent --show-error --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    --header @<(printf 'Authorization: Bearer %s\n' "${OPENAI_API_KEY:-none}") \
    --header 'Content-Type: application/json' --data "$body"
echo
