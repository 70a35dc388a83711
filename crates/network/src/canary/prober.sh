# What a canary's prober runs: it dials every target in turn, round after round, each time by a new connection. Arguments: the page
# that a canary's server gives, then "http HOST PORT" or "tcp HOST PORT" for each target.
#
# Each round writes a line for each target, "ROUND INDEX OUTCOME", and at its end "ROUND .". A probe that could not run is
# none of the outcomes that mean something: it is "unknown", with its own words.
page=$1; shift
trap 'exit 0' TERM

dial() {
  case $2 in
    http) said=$(timeout 3 wget -q -T 1 -O - "http://$3:$4/" 2>&1) ;;
    tcp) said=$(timeout 3 nc -w 1 "$3" "$4" </dev/null 2>&1) ;;
  esac
  case "$? $2 $said" in
    "0 http $page" | "0 tcp "*) outcome=open ;;
    *"timed out"*) outcome=dropped ;;
    *[Rr]efused*) outcome=refused ;;
    *"bad address"*) outcome=noname ;;
    *"No route to host"* | *nreachable* | *[Pp]rohibited* | *"not permitted"*) outcome=noroute ;;
    "143 "* | "124 "*) outcome="unknown no answer within 3 s" ;;
    *) outcome="unknown $(echo "$said" | tr '\n' ' ' | head -c 200)" ;;
  esac
  echo "$round $1 $outcome"
}

round=0
while :; do
  round=$((round + 1)) index=0
  for target; do
    dial $index $target &
    index=$((index + 1))
  done
  wait
  echo "$round ."
  sleep 0.1
done
