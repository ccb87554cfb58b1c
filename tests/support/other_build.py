"""other_build.py FROM TO: copies a program or library, so that the copy seems to be of another build."""

import pathlib
import shutil
import sys

TYPE_AND_NAME = b"\x03\0\0\0GNU\0"  # of the note with its build id

source, copy = map(pathlib.Path, sys.argv[1:])
content = bytearray(source.read_bytes())
content[content.index(TYPE_AND_NAME) + len(TYPE_AND_NAME)] ^= 1
shutil.copy(source, copy)
copy.write_bytes(content)
