"""`extends`: values of another profile underneath, each with the file and line where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.load import ProfileProblem, load_profile


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_not_said_comes_from_the_other_profile(tmp_path: Path) -> None:
    path = write(
        tmp_path, "mine.yaml",
        "extends: laptop\nname: mine\ntarget:\n  aux_layer_ids: [3, 5]\n"
        "train:\n  draft:\n    vocab_size: null\n",
    )  # fmt: skip
    loaded = load_profile(path)
    laptop = load_profile("laptop").profile
    assert loaded.profile.name == "mine" and loaded.profile.target.aux_layer_ids == (3, 5)
    assert loaded.profile.train.lr == laptop.train.lr and loaded.profile.target.source == laptop.target.source
    assert loaded.profile.train.draft.vocab_size is None
    assert loaded.origins["train.lr"].startswith("laptop.yaml:")
    assert loaded.origins["target.aux_layer_ids"] == "mine.yaml:4"
    assert loaded.unknown == ("train.draft.vocab_size",)
    assert load_profile(path, {"train": {"draft": {"vocab_size": 512}}}).unknown == ()


def test_a_file_is_found_beside_the_one_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    write(tmp_path / "bases", "far.yaml", "extends: laptop\ntrain:\n  epochs: 2\n")
    write(tmp_path, "near.yaml", "extends: bases/far.yaml\ntrain:\n  lr: 0.01\n")
    path = write(tmp_path, "mine.yaml", "extends: near.yaml\nname: mine\n")
    profile = load_profile(path).profile
    assert (profile.train.epochs, profile.train.lr, profile.name) == (2, 0.01, "mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: nowhere\nname: mine\n", "cannot be read"),
        ("extends: [laptop]\nname: mine\n", "names no profile"),
        ("extends: mine.yaml\nname: mine\n", "in a circle"),
        ("extends: laptop\nname: mine\nepochs: 2\n", "epochs: unknown field"),
    ],
)
def test_what_cannot_be_extended_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, "mine.yaml", text)
    with pytest.raises(ProfileProblem, match=words) as caught:
        load_profile(path)
    assert "mine.yaml" in caught.value.where or "nowhere" in caught.value.where


def test_a_circle_through_another_file_is_told_with_all_of_it(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "extends: a.yaml\n")
    path = write(tmp_path, "a.yaml", "extends: b.yaml\nname: a\n")
    with pytest.raises(ProfileProblem, match=r"a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        load_profile(path)


def test_a_wrong_value_is_told_where_it_stands(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "extends: laptop\ntrain:\n  lr: fast\n")
    path = write(tmp_path, "mine.yaml", "extends: base.yaml\nname: mine\n")
    with pytest.raises(ProfileProblem, match=r"train\.lr") as caught:
        load_profile(path)
    assert caught.value.where == "base.yaml:3"
