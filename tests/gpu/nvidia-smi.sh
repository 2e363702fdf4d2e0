#!/bin/sh
# Of an older driver: it knows throttle reasons under their first name, and cannot tell a limit of power.
case "$2" in
  --query-gpu=name) echo "NVIDIA H200";;
  --query-gpu=power.draw) echo 77.25;;
  --query-gpu=power.limit) echo "[N/A]";;
  --query-gpu=clocks_throttle_reasons.active) echo 0x0000000000000044;;
  *) echo "Field is not a valid field to query."; exit 2;;
esac
