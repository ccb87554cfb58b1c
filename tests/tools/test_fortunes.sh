# The text of the demo: of a folder's files, what is text; of a folder that is not there, an error.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/de"
printf 'one\n%%\ntwo %% of it\n' >"$folder/b"
printf 'zero\n' >"$folder/a"
printf 'index' >"$folder/a.dat"
printf '/\\_/\\\n' >"$folder/art"
printf 'anders\n' >"$folder/de/sprueche"
text=$(FORTUNES=$folder "$FSDP_SOURCE/tools/fortunes.sh")
if [ "$text" != "$(printf 'zero\none\n\ntwo %% of it')" ]; then
    printf 'the text is\n%s\n' "$text"
    exit 1
fi
if FORTUNES=$folder/none "$FSDP_SOURCE/tools/fortunes.sh" 2>"$folder/error" || ! grep -q "$folder/none" "$folder/error"; then
    echo "no error that names a folder which is not there"
    exit 1
fi
