# shellcheck shell=bash
# Usage: sparkloom-gateway-keys FOLDER. Reads $CREDENTIALS_DIRECTORY/clients (lines `NAME KEY` or `KEY`) and, where it
# is, $CREDENTIALS_DIRECTORY/engine (the engine's own key); writes FOLDER/keys.map and FOLDER/upstream.conf for nginx.
folder=$1
clients=$CREDENTIALS_DIRECTORY/clients
engine=$CREDENTIALS_DIRECTORY/engine

fail() {
    echo "sparkloom-gateway-keys: $1" >&2
    echo "  mend: $2" >&2
    exit 4
}

map=""
number=0
seen=0
while read -r first second rest || [[ -n $first ]]; do
    number=$((number + 1))
    [[ -z $first || $first == \#* ]] && continue
    [[ -z $rest ]] || fail "line $number of the key file has more than two words" "write NAME KEY"
    if [[ -n $second ]]; then name=$first key=$second; else name=client$number key=$first; fi
    [[ $name =~ ^[A-Za-z0-9_.-]+$ ]] || fail "the name in line $number of the key file" "use letters, digits and _ . -"
    [[ $key =~ ^[A-Za-z0-9_.~+/=-]{16,256}$ ]] ||
        fail "the key in line $number of the key file" "use 16 to 256 letters, digits and _ . ~ + / = -"
    # A plain string in a map of nginx is compared without regard to case; a regular expression is exact.
    # shellcheck disable=SC2001
    exact=$(sed 's/[^A-Za-z0-9]/\\&/g' <<<"$key")
    map+="\"~^Bearer $exact\$\" \"$name\";"$'\n'
    seen=$((seen + 1))
done <"$clients"
((seen > 0)) || fail "the key file names no key" "write one NAME KEY per line"

umask 0027
printf '%s' "$map" >"$folder/keys.map.new"
if [[ -s $engine ]]; then
    read -r key <"$engine" || [[ -n $key ]]
    [[ $key == *" "* ]] && key=${key##* }
    printf 'proxy_set_header Authorization "Bearer %s";\n' "$key" >"$folder/upstream.conf.new"
else
    printf 'proxy_set_header Authorization "";\n' >"$folder/upstream.conf.new"
fi
mv "$folder/keys.map.new" "$folder/keys.map"
mv "$folder/upstream.conf.new" "$folder/upstream.conf"
