"""Every edit lands exactly once in the real source, and a source it does not fit is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.horovod_build.edit import Edit, apply_edit
from hvdtrain.horovod_build.edits import EDITS, apply_all, features, fingerprint
from hvdtrain.horovod_build.errors import BuildError


@pytest.fixture
def copied(released: Path, tmp_path: Path) -> Path:
    """Only the files that are edited."""
    for path in {edit.path for edit in EDITS}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(released / path, tmp_path / path)
    return tmp_path


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.path}:{edit.old.strip()[:30]}")
def test_each_edit_fits_the_released_source(released: Path, edit: Edit) -> None:
    assert (released / edit.path).read_text().count(edit.old) == 1
    assert len(edit.why) > 20


def test_all_edits_together(copied: Path) -> None:
    apply_all(copied)
    for edit in EDITS:
        assert edit.new in (copied / edit.path).read_text()
    store = (copied / "horovod/common/gloo/http_store.h").read_text()
    assert 'std::getenv("HVDTRAIN_RENDEZVOUS_TOKEN")' in store
    assert store.index("token) +") < store.index("scope +"), "the token comes before the scope"


def test_a_second_time_is_refused(copied: Path) -> None:
    apply_all(copied)
    with pytest.raises(BuildError, match="0 times instead of once"):
        apply_all(copied)


@pytest.mark.parametrize(("text", "count"), [("nothing here", 0), ("old words, old words", 2)])
def test_text_missing_or_doubled_is_refused(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "a.cc").write_text(text)
    with pytest.raises(BuildError, match=f"a.cc: .* {count} times instead of once"):
        apply_edit(tmp_path, Edit("a.cc", "old words", "new words", "because"))
    assert (tmp_path / "a.cc").read_text() == text


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"missing\.cc: No such file"):
        apply_edit(tmp_path, Edit("missing.cc", "a", "b", "because"))


def test_fingerprint_follows_the_text_and_not_the_reason() -> None:
    first, *rest = EDITS
    assert fingerprint((replace(first, why="put differently"), *rest)) == fingerprint()
    assert fingerprint((replace(first, new=first.new + "//"), *rest)) != fingerprint()
    assert fingerprint(tuple(rest)) != fingerprint()


def test_features_are_those_of_the_edits() -> None:
    assert {"rendezvous_token", "stall_inspector"} <= set(features())
    assert features(()) == []
