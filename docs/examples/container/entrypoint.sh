#!/bin/sh
# Runs the command that it is given (`tritonserver --model-repository=/models`, `tpy check /models`, `bash`). Flags alone, a
# repository, or nothing are for `tpy serve`.
case "${1-}" in
  "" | -*) exec tpy serve "$@" ;;
esac
if [ ! -d "$1" ] && command -v "$1" >/dev/null 2>&1; then
  exec "$@"
fi
exec tpy serve "$@"
