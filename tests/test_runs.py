"""Folders of runs, and which checkpoint ``last`` and ``best`` mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from template.distributed.faults import NamedError
from template.runs import (
    CHECKPOINTS,
    Place,
    claim_folder,
    damage,
    decide_place,
    experiment_folder,
    find_checkpoint,
    numbered_folders,
    relative_to_here,
    remove_parts,
    run_of,
)


def checkpoint(run: Path, name: str, best: str | None = None, age: float = 0) -> Path:
    """Write a checkpoint of a run, so many seconds ago, that says which one is best."""
    file = run / CHECKPOINTS / name
    file.parent.mkdir(parents=True, exist_ok=True)
    callbacks = {"RankZeroCheckpoint{'monitor': 'val/dice'}": {"best_model_path": f"/elsewhere/{best}" if best else ""}}
    torch.save({"state_dict": {}, "callbacks": callbacks}, file)
    os.utime(file, (1e9 - age, 1e9 - age))
    return file


# Folders ------------------------------------------------------------------------------------------------------------


def test_the_next_number_is_above_all_that_exist(tmp_path: Path) -> None:
    (tmp_path / "version_2").mkdir()
    (tmp_path / "version_10").mkdir()
    (tmp_path / "version_99.yaml").touch()
    (tmp_path / "other_50").mkdir()
    assert claim_folder(tmp_path, "version") == tmp_path / "version_11"
    assert claim_folder(tmp_path, "version") == tmp_path / "version_12"
    assert claim_folder(tmp_path / "new", "test") == tmp_path / "new" / "test_0"


@pytest.mark.case("G1")
def test_a_folder_is_claimed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another program has made version_0 between looking and making.
    monkeypatch.setattr("template.runs.numbered_folders", lambda parent, stem: [])
    (tmp_path / "version_0").mkdir()
    assert claim_folder(tmp_path, "version") == tmp_path / "version_1"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(NamedError, match=r"The folder '.*/runs/version_0' cannot be made: Not a directory\.") as caught:
        claim_folder(tmp_path / "runs", "version")
    assert caught.value.identifier == "folder-not-writable"


def test_numbered_folders_come_newest_first(tmp_path: Path) -> None:
    for name in ("version_2", "version_10", "version_1", "version_x", "xversion_3"):
        (tmp_path / name).mkdir()
    (tmp_path / "version_7").touch()  # a file
    assert [number for number, _ in numbered_folders(tmp_path, "version")] == [10, 2, 1]
    assert numbered_folders(tmp_path / "nowhere", "version") == []


def test_paths_below_the_working_directory_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert relative_to_here(tmp_path / "runs" / "a") == Path("runs/a")
    assert relative_to_here(tmp_path.parent / "a") == tmp_path.parent / "a"


# Checkpoints --------------------------------------------------------------------------------------------------------


def test_last_and_best_of_the_newest_run(tmp_path: Path) -> None:
    old, new = tmp_path / "version_0", tmp_path / "version_1"
    checkpoint(old, "last.ckpt", "best-9.ckpt")
    checkpoint(old, "best-9.ckpt")
    last = checkpoint(new, "last.ckpt", "best-1.ckpt")
    best = checkpoint(new, "best-1.ckpt", age=10)
    checkpoint(new, "best-0.ckpt", age=20)
    assert find_checkpoint(tmp_path, "last") == last
    assert find_checkpoint(tmp_path, "best") == best


def test_a_run_without_a_whole_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole = checkpoint(tmp_path / "version_0", "last.ckpt")
    cut = checkpoint(tmp_path / "version_1", "last.ckpt")
    cut.write_bytes(cut.read_bytes()[:-100])
    (tmp_path / "version_2").mkdir()
    assert damage(cut)
    assert find_checkpoint(tmp_path, "last") == whole
    assert find_checkpoint(tmp_path, "best") == whole


def test_beside_a_cut_last_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    run = tmp_path / "version_0"
    cut = checkpoint(run, "last.ckpt", "best-0.ckpt")
    cut.write_bytes(cut.read_bytes()[:-100])
    checkpoint(run, "best-0.ckpt", "best-0.ckpt", age=20)
    newer = checkpoint(run, "best-1.ckpt", "best-1.ckpt", age=10)
    assert find_checkpoint(tmp_path, "last") == newer
    assert find_checkpoint(tmp_path, "best") == newer


def test_a_best_that_was_deleted_or_moved(tmp_path: Path) -> None:
    last = checkpoint(tmp_path / "version_0", "last.ckpt", "best-0.ckpt")
    assert find_checkpoint(tmp_path, "best") == last
    # Moved with its run: only the name of what the checkpoint recorded counts.
    (tmp_path / "moved").mkdir()
    (tmp_path / "version_0").rename(tmp_path / "moved" / "version_0")
    best = checkpoint(tmp_path / "moved" / "version_0", "best-0.ckpt")
    assert find_checkpoint(tmp_path / "moved", "best") == best


def test_nothing_to_find(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "nowhere", "last") is None
    (tmp_path / "version_0" / CHECKPOINTS).mkdir(parents=True)
    assert find_checkpoint(tmp_path, "best") is None


def test_the_run_of_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "version_3"
    assert run_of(checkpoint(run, "last.ckpt")) == run
    assert run_of(tmp_path / "last.ckpt") is None
    assert run_of(tmp_path / "other" / CHECKPOINTS / "last.ckpt") is None


# Both ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment with one run, seen from the folder above."""
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "runs/mine/version_0", "last.ckpt")
    return Path("runs/mine")


def test_a_fit_gets_a_new_folder(experiment: Path) -> None:
    assert decide_place(experiment, "fit", None) == Place(
        experiment / "version_1", experiment / "version_1", checkpoint=None
    )


@pytest.mark.parametrize("which", ["last", "best", "runs/mine/version_0/checkpoints/last.ckpt"])
def test_a_resumed_fit_goes_on_in_its_folder(experiment: Path, which: str) -> None:
    place = decide_place(experiment, "fit", which)
    assert (place.run, place.verb) == (experiment / "version_0", experiment / "version_0")
    assert place.checkpoint == "runs/mine/version_0/checkpoints/last.ckpt"


def test_a_fit_from_the_checkpoint_of_another_experiment_gets_a_folder_of_its_own(experiment: Path) -> None:
    place = decide_place(experiment.parent / "other", "fit", str(experiment / "version_0/checkpoints/last.ckpt"))
    assert place.run == Path("runs/other/version_0")


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_other_verbs_write_into_the_run_of_their_checkpoint(experiment: Path, verb: str) -> None:
    for number in (0, 1):
        place = decide_place(experiment, verb, "best")
        assert (place.run, place.verb) == (experiment / "version_0", experiment / "version_0" / f"{verb}_{number}")


def test_a_file_from_elsewhere_is_tested_in_a_folder_of_its_own(experiment: Path, tmp_path: Path) -> None:
    file = checkpoint(tmp_path / "elsewhere", "x.ckpt")
    place = decide_place(experiment, "test", str(file))
    assert (place.run, place.verb) == (experiment / "version_1", experiment / "version_1" / "test_0")
    assert place.checkpoint == str(file)


def test_no_checkpoint_is_no_matter_for_a_fit_alone(tmp_path: Path) -> None:
    assert decide_place(tmp_path / "new", "fit", "last").checkpoint is None
    for which, words in (("best", "No run in"), ("gone.ckpt", r"'gone\.ckpt' does not exist")):
        with pytest.raises(NamedError, match=words) as caught:
            decide_place(tmp_path / "empty", "test", which)
        assert caught.value.identifier == "no-checkpoint"
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("file", [None, "a b/c.ckpt"])
def test_a_place_survives_being_written_as_text(file: str | None) -> None:
    place = Place(Path("runs/ä ö/version_0"), Path("/abs/test_1"), file)
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize("name", ["", " ", "..", "../elsewhere", "/elsewhere"])
def test_an_experiment_outside_of_the_runs_is_refused(name: str) -> None:
    with pytest.raises(NamedError, match=f"experiment is '{name}', which is no name of a folder") as caught:
        experiment_folder("runs", name)
    assert caught.value.exit_code == 2


def test_an_experiment_may_have_levels() -> None:
    assert experiment_folder("runs", "a/肝 脏") == Path("runs/a/肝 脏")


# Damage -------------------------------------------------------------------------------------------------------------


def written(run: Path, name: str, age: float = 0) -> Path:
    """A checkpoint with weights whose bytes can be told apart."""
    file = run / CHECKPOINTS / name
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": {"net.weight": torch.arange(5000.0)}, "callbacks": {}}, file)
    os.utime(file, (1e9 - age, 1e9 - age))
    return file


@pytest.mark.case("G3")
@pytest.mark.parametrize("tenth", range(10))
def test_from_a_cut_checkpoint_a_fit_goes_on_with_the_one_before(
    tenth: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/mine/version_0")
    written(run, "best-003.ckpt", age=9)
    written(run, "best-002.ckpt", age=20)
    last = written(run, "last.ckpt")
    size = last.stat().st_size * tenth // 10
    last.write_bytes(last.read_bytes()[:size])
    place = decide_place(Path("runs/mine"), "fit", "last")
    assert place.checkpoint == "runs/mine/version_0/checkpoints/best-003.ckpt"
    assert place.run == run
    how = f"it is cut off at {size} bytes" if size else "it is empty"
    assert capsys.readouterr().err == (
        f"'runs/mine/version_0/checkpoints/last.ckpt' is damaged, {how}; "
        "going on from 'runs/mine/version_0/checkpoints/best-003.ckpt'.\n"
    )


@pytest.mark.case("G3")
def test_a_flipped_byte_is_found_wherever_it_changes_what_is_loaded(tmp_path: Path) -> None:
    file = written(tmp_path, "last.ckpt")
    whole = file.read_bytes()
    expected = torch.load(file, weights_only=True)["state_dict"]["net.weight"]
    found = 0
    for place in range(7, len(whole), 97):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        if damage(file):
            found += 1
        else:  # padding, a time stamp
            assert torch.equal(torch.load(file, weights_only=True)["state_dict"]["net.weight"], expected)
    assert found > 200  # of 225 places; 20000 of the 21800 bytes are weights


@pytest.mark.case("G3")
def test_without_another_one_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    last = written(tmp_path / "version_0", "last.ckpt")
    last.write_bytes(last.read_bytes()[:1234])
    (tmp_path / "version_1").mkdir()
    with pytest.raises(NamedError, match=r"last\.ckpt' is damaged, it is cut off at 1234 bytes, and no run") as caught:
        decide_place(tmp_path, "fit", "last")
    assert caught.value.identifier == "checkpoint-unreadable"
    assert "remove the damaged one to begin anew" in caught.value.fix


@pytest.mark.case("G3")
def test_a_damaged_file_that_was_asked_for_is_named_with_what_there_is_instead(tmp_path: Path) -> None:
    last = written(tmp_path / "version_0", "last.ckpt")
    best = written(tmp_path / "version_0", "best-001.ckpt")
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    with pytest.raises(NamedError, match=r"last\.ckpt' is damaged: the checksum of its entry '.*' is wrong") as caught:
        decide_place(tmp_path, "test", str(last))
    assert caught.value.fix == f"Use '{best}', the newest whole one beside it."


def test_what_a_kill_has_left_half_written_is_removed(tmp_path: Path) -> None:
    last = written(tmp_path / "version_0", "last.ckpt")
    part = last.with_name(".last.ckpt.4711.part")
    part.write_bytes(b"half")
    remove_parts(tmp_path / "version_0")
    assert [path.name for path in last.parent.iterdir()] == ["last.ckpt"]
