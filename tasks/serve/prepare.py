"""Makes a profile's target ready and prints its folder: the last step of set-up.

python -m tasks.serve.prepare PROFILE.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from profiles.schema import Profile
from tasks.errors import RetrainError
from tasks.serve.target_folder import check_target, resolve_target


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tasks.serve.prepare PROFILE.yaml")
    profile = Profile.model_validate(yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8")))
    try:
        folder = resolve_target(profile)
        check_target(profile, folder)
    except RetrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
