"""`narrowcast calibrate`: through the command, with real packets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from narrowcast.cli.set_option import measured
from narrowcast.costs.calibration import Calibration, CalibrationPoint, read_calibration, write_calibration
from support.command import call, document, refusal, table_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    said, _ = document("calibrate", "--seconds", "0.6", "--h", "1,16", "--seed", "5", "--out", file)
    assert json.loads(file.read_text()) == said
    found = read_calibration(file)
    assert [point.h for point in found.points] == [1, 16]
    assert found.command == "narrowcast calibrate --seconds 0.6 --seed 5 --h 1,16 --out FILE"
    assert found.at(1).alpha > found.at(16).alpha > 0
    shown = call("calibrate", "--seconds", "0.6", "--h", "1,16", "--size", "64", "--out", file)
    assert shown.exit_code == 0
    assert [row[0] for row in table_of(shown.stdout)][-4:] == ["1", "16", "alpha(h)", "beta(h)"]
    assert shown.stdout.endswith(f"{file}: for --cost filtering, give --set calibration={file} --set h=8\n")
    assert read_calibration(file).message_bytes == 64
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--h", "1,x"], "--h is '1,x'; write whole numbers joined by commas: 1,8,40"),
        (["--h", "1"], "h is [1]; give at least two numbers of messages, each once"),
        (["--seconds", "0"], "seconds is 0.0; give a number above 0"),
        (["--interface", "192.0.2.1"], "no multicast to 239.255.71.4 on 192.0.2.1: No such device; allow it"),
        (["--group", "127.0.0.1"], "group is 127.0.0.1; give a multicast address"),
    ],
)
def test_bad_words(words: list[str], message: str, tmp_path: Path) -> None:
    assert refusal("calibrate", *words, "--out", tmp_path / "machine.json").startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_no_place(tmp_path: Path) -> None:
    assert "is a folder; name a file" in refusal("calibrate", "--out", tmp_path)
    assert "folder that does not exist" in refusal("calibrate", "--out", tmp_path / "no" / "file.json")


def test_curves_that_fit_badly_are_told_of_before_they_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [
        CalibrationPoint(1, 5.0, 0.75, 1.0),
        CalibrationPoint(4, 1.4, 0.4, 1.0),
        CalibrationPoint(10, 0.6, 0.3, 1.0),
    ]
    poor = [
        CalibrationPoint(1, 5.0, 0.3, 1.0),
        CalibrationPoint(4, 1.4, 0.1, 1.0),
        CalibrationPoint(10, 0.6, 0.4, 1.0),
    ]
    for points, said in ((good, ""), (poor, "c.json: beta(h) fits badly (R2 0.00): measure longer")):
        write_calibration(Calibration.of(points), tmp_path / "c.json")
        measured({"calibration": tmp_path / "c.json", "h": 8})
        told = capsys.readouterr()
        assert told.out == ""
        assert said in told.err
        assert bool(told.err) == bool(said)
