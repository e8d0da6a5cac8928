"""Compares the files of unpacked wheels with the hashes in their RECORD files: records.py FOLDER"""

import base64
import csv
import hashlib
import sys
from pathlib import Path


def main(folder: Path) -> int:
    checked = wrong = 0
    for record in folder.glob("*.dist-info/RECORD"):
        with record.open(newline="") as lines:
            for name, told, size in csv.reader(lines):
                if not told:
                    continue
                kind, _, digest = told.partition("=")
                data = (folder / name).read_bytes()
                found = base64.urlsafe_b64encode(hashlib.new(kind, data).digest()).rstrip(b"=").decode()
                checked += 1
                if found != digest or len(data) != int(size):
                    wrong += 1
                    print(f"{name}: {found} is not {digest}")
    print(f"{checked} files, {wrong} wrong")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
