# Holds an app back until its network is closed: connects to addresses that the app's policy closes, until two connects in a
# row to each are refused or time out. A probe that cannot run proves nothing, so the probe is proved on loopback first.
# Arguments: seconds to try, then "ADDRESS PORT" each.
limit=$1; shift
now() { read -r up _ </proc/uptime; echo "${up%.*}${up#*.}"; }
say() { echo "$*"; echo "$*" >/dev/termination-log; }
[ -z "$KUBERNETES_SERVICE_HOST" ] || set -- "$KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT" "$@"
[ $# -gt 0 ] || { say "no address to try"; exit 4; }

nc -l -p 20199 </dev/null >/dev/null 2>&1 &
listener=$! tried=0
until words=$(nc -w 1 127.0.0.1 20199 </dev/null 2>&1 || nc -w 1 ::1 20199 </dev/null 2>&1); do
  tried=$((tried + 1))
  [ $tried -lt 50 ] || { say "the probe does not work on loopback: $words"; exit 3; }
  sleep 0.1
done
kill $listener 2>/dev/null

probe() {
  if words=$(nc -w 1 "${1% *}" "${1#* }" </dev/null 2>&1); then echo "$1 is open; "; return; fi
  case $words in
    *[Rr]efused*|*"timed out"*|*"No route to host"*|*[Pp]rohibited*|*"not permitted"*) ;;
    *) echo "$1 is not known to be closed: $words; " ;;
  esac
}

began=$(now)
while :; do
  open=$(for _ in 1 2; do for target; do probe "$target" & done; sleep 0.05; done; wait)
  spent=$(($(now) - began))
  [ -n "$open" ] || { say "closed after ${spent}0 ms"; exit 0; }
  [ $spent -lt $((limit * 100)) ] || { say "after $limit s:" $open; exit 1; }
  sleep 0.05
done
