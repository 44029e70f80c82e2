#!/bin/sh
# A worker in any language: one process per message, its body on standard input. With the bridge running:
#
#   queuebell listen http://127.0.0.1:8470 text/lines --bridge http://127.0.0.1:8470 --exec 'sh examples/shell_worker.sh'
#   queuebell queue put text/lines 'hello'
#
# Exit 0 deletes the message, 75 has it come again, 100 buries it, anything else is a failed attempt.
text=$(cat)
case $text in
"") exit 100 ;;
later) [ "$QUEUEBELL_ATTEMPT" -gt 1 ] || exit 75 ;;
esac
printf '%s, attempt %s: %s\n' "$QUEUEBELL_QUEUE" "$QUEUEBELL_ATTEMPT" "$(printf %s "$text" | tr a-z A-Z)"
