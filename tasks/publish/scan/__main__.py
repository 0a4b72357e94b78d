"""Look through a folder as publication does: `python -m tasks.publish.scan FOLDER`; ends with 0 or 1."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tasks.publish.scan.detectors import detected
from tasks.publish.scan.places import machine_names, machine_paths, places_in
from tasks.publish.scan.texts import readings, text_of


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m tasks.publish.scan FOLDER", file=sys.stderr)
        return 2
    folder, paths, names = Path(arguments[0]), machine_paths(()), machine_names()
    files, found = [path for path in sorted(folder.rglob("*")) if path.is_file()], 0
    for path in files:
        text = text_of(path)
        seen = readings(text)
        told = [*detected(path.name, text, seen), *(p for one in seen for p in places_in(one, paths, names))]
        for what in dict.fromkeys(told):
            print(f"{path.relative_to(folder)}: {what}")
            found += 1
    print(f"{len(files)} files, {found} findings, {time.process_time():.1f} s of one core")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
