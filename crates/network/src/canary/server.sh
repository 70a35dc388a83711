# What a canary's server runs: a page that nobody else has. Arguments: the page, the port.
#
# It runs in the helper image, so it first tells what that image lacks of the tools that helpers need.
missing=
for tool in sh env tar gzip wget httpd nc sha256sum stat find df mv sync timeout kill; do
  command -v $tool >/dev/null || missing="$missing $tool"
done
[ -z "$missing" ] || { echo "the image lacks:$missing"; exit 3; }
mkdir -p /tmp/www && echo "$1" >/tmp/www/index.html || { echo "the image has no /tmp that can be written to"; exit 4; }
trap 'kill $!; exit 0' TERM
httpd -f -p "$2" -h /tmp/www &
wait
