# Holds an app back until its network is closed: connects to addresses that the app's policy closes, until two connects in a
# row to each are refused or time out. Arguments: seconds to try, then "ADDRESS PORT" each.
#
# A probe that cannot run proves nothing, so each pair of connects has a control beside it, on loopback, by the same probe. A
# connect that takes long is not a closed one: the brief time-out counts only for an address that was open within it before.
# An address that never was seen open is given nc's own time-out.
limit=$1; shift
control="127.0.0.1 20199"
now() { read -r up _ </proc/uptime; echo "${up%.*}${up#*.}"; }
say() { echo "$*"; echo "$*" >/dev/termination-log; }
[ -z "$KUBERNETES_SERVICE_HOST" ] || set -- "$KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT" "$@"
[ $# -gt 0 ] || { say "no address to try"; exit 4; }

# One connect: says that it is open, or what it cannot tell; nothing when it is closed.
connect() {
  if [ "$1" = brief ]; then
    said=$({ timeout 0.2 nc "${2% *}" "${2#* }" </dev/null; } 2>&1)
  else
    said=$(nc -w 1 "${2% *}" "${2#* }" </dev/null 2>&1)
  fi
  case "$? $1 $said" in
    "0 "*) echo "$2 is open;" ;;
    "143 brief "* | "124 brief "*) ;;
    *[Rr]efused* | *"timed out"* | *"No route to host"* | *[Pp]rohibited* | *"not permitted"*) ;;
    *) echo "$2 is not known to be closed: $said;" ;;
  esac
}

# Two connects to each address, and to the control, at once but for a moment between.
pair() { for _ in 1 2; do for target; do connect "$time" "$target" & done; sleep 0.05; done; wait; }

nc -ll -p ${control#* } -e true </dev/null >/dev/null 2>&1 &
listener=$!
trap 'kill $listener 2>/dev/null' EXIT
time=patient tried=0
until said=$(connect patient "$control"); [ "$said" = "$control is open;" ]; do
  tried=$((tried + 1))
  [ $tried -lt 100 ] || { say "the probe does not work on loopback: $said"; exit 3; }
  sleep 0.02
done
time=brief
[ "$(connect brief "$control")" = "$control is open;" ] || time=patient

began=$(now) seen=
while :; do
  said=$(pair "$control" "$@")
  spent=$(($(now) - began)) open= proved=$time
  case "$said" in
    *"$control is open;"*"$control is open;"*) ;;
    *) open="the probe does not work on loopback;" ;;
  esac
  for target; do
    case "$said" in *"$target is "*) open="$open $target is open or not known to be closed;" ;; esac
    case "$said" in *"$target is open;"*) [ $time = patient ] || seen="$seen $target;" ;; esac
    case "$seen" in *" $target;"*) ;; *) proved=patient ;; esac
  done
  if [ -z "$open" ]; then
    [ $time != "$proved" ] || { say "closed after ${spent}0 ms"; exit 0; }
    time=patient
  else
    [ $spent -lt $((limit * 100)) ] || { say "after $limit s:$open" $said; exit 1; }
  fi
done
