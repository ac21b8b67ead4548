"""Help, completion, did-you-mean, and the translation of library errors into options."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from narrowcast.cli import choices
from narrowcast.cli.app import COMMANDS, load_command
from narrowcast.cli.command import COMMAND_OPTIONS, OPTIONS_OF, Command, CommandGroup
from narrowcast.cli.parameters import KINDS, SETTABLE, _registry, meaning_of, strategy_parameters
from narrowcast.errors import ParameterError
from support.command import outcome, shows

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = ("numba", "pyspark", "scipy.optimize", "vl_convert")
#: Options in one panel of a command's help.
MOST = 10


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its words, those of groups included."""
    for name in COMMANDS:
        command = load_command(name)
        if isinstance(command, CommandGroup):
            yield from ((f"{name} {each}", found) for each, found in command.commands.items())
        else:
            yield name, command


ALL = dict(commands())


@pytest.mark.parametrize("words", ALL)
def test_every_command_has_help_with_an_example(words: str) -> None:
    assert f"narrowcast {words}" in ALL[words].help


@pytest.mark.parametrize("words", ALL)
def test_options_are_in_panels_of_at_most_ten(words: str) -> None:
    panels = [getattr(param, "rich_help_panel", None) for param in ALL[words].params]
    assert max(panels.count(panel) for panel in panels) <= MOST


@pytest.mark.parametrize("words", [words for words in ALL if words != "reproduce"])  # the lab's own
def test_every_option_has_a_help_text_with_its_default(words: str) -> None:
    for param in ALL[words].params:
        assert param.help, param.name
        optional = param.param_type_name == "option" and not param.required and not param.is_flag
        if optional and param.default is None and not param.multiple:
            assert "(default: " in param.help or "required" in param.help, (param.name, param.help)


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if not COMMANDS[name].place.startswith("narrowcast.lab")]
)
def test_the_list_of_commands_has_the_summary_of_each(name: str) -> None:
    assert (load_command(name).help or "").split("\n")[0] == COMMANDS[name].summary


def test_help_names_panels_and_both_spellings() -> None:
    for words in (["--help"], ["-h"], ["plan", "-h"], ["users", "add", "-h"]):
        found = outcome(*words)
        assert found.returncode == 0
        assert "Usage: " in found.stdout
        assert "<bool>" not in found.stdout
    listed = outcome("-h").stdout
    assert shows(listed, "Plan evaluate Match stream broker papers --install-completion")
    assert "Planning and costs" in outcome("plan", "-h").stdout


@pytest.mark.parametrize(
    "words", ["", "plan", "serve", "compare", "explain", "match", "calibrate", "restore"]
)
def test_help_imports_nothing_heavy(words: str) -> None:
    code = (
        f"import sys; sys.argv = ['narrowcast', *{words.split()!r}, '--help']\n"
        "from narrowcast.cli.main import _run\n"
        "code = _run()\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(code, found, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "0 []\n"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["plam"], "'plam' 'plan'"),
        (["plan", "--chanels", "3"], "--chanels '--channels'"),
        (["users", "ad", "ann"], "'ad' 'add'"),
        (["bench", "matchin"], "'matchin' 'matching'"),
        (["parameters", "join"], "'join' 'joint'"),
        (["plan", "--interests", "i", "--method", "mst", "--set", "topp=3", "--out", "o"], "'topp' 'top'"),
        (["evaluate", "--set", "sendd=3"], ""),
    ],
)
def test_did_you_mean(words: list[str], shown: str) -> None:
    found = outcome(*words)
    assert found.returncode == 2
    assert shows(found.stderr, shown)


def test_completion_names_commands_and_options() -> None:
    def complete(text: str) -> str:
        code = "import sys; sys.argv = ['narrowcast']; from narrowcast.cli.main import main; main()"
        words = {
            "_NARROWCAST_COMPLETE": "complete_bash",
            "COMP_WORDS": text,
            "COMP_CWORD": str(text.count(" ")),
        }
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), **words},
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout

    assert complete("narrowcast ex").split() == ["explain", "export"]
    assert complete("narrowcast plan --chann").split() == ["--channels"]


def test_choices_are_those_of_the_library() -> None:
    from narrowcast.costs import COSTS, multicast_loopback
    from narrowcast.filters.limits import FilterLimits
    from narrowcast.planning.base import planners
    from narrowcast.planning.ranges.partitioning import SCHEMES
    from narrowcast.report.export import multicast, nats
    from narrowcast.routing import ROUTERS
    from narrowcast.spark.planning.large_planner import LARGE_PLANNERS
    from narrowcast.spark.session import MASTER
    from narrowcast.spark.stages.interest_collection import LIMIT
    from narrowcast.spark.stages.match import STRATEGIES
    from narrowcast.spark.stages.plan_inputs import FLOWS
    from narrowcast.spark.stages.run import RECENT
    from narrowcast.workloads import WORKLOADS

    assert list(choices.METHODS) == planners(boxes=False)
    assert list(choices.BOX_METHODS) == planners(boxes=True)
    assert list(choices.ONLINE_METHODS) == planners(online=True)
    assert list(choices.LARGE_METHODS) == list(LARGE_PLANNERS)
    assert list(choices.COSTS) == list(COSTS)
    assert list(choices.ROUTERS) == list(ROUTERS)
    assert list(choices.WORKLOADS) == list(WORKLOADS)
    assert list(choices.SCHEMES) == list(SCHEMES)
    assert (choices.STRATEGIES, choices.FLOWS) == (STRATEGIES, FLOWS)
    assert (choices.MASTER, choices.RECENT, choices.LIMIT) == (MASTER, RECENT, LIMIT)
    assert FilterLimits().boxes == choices.BOXES
    assert (choices.MULTICAST_BASE, choices.MULTICAST_PORT) == (multicast.BASE, multicast.PORT)
    assert choices.NATS_PREFIX == nats.PREFIX
    assert choices.CALIBRATION_SECONDS == multicast_loopback.SECONDS
    assert ",".join(map(str, multicast_loopback.AGGREGATION)) == choices.CALIBRATION_AGGREGATION
    assert choices.CALIBRATION_SIZE == multicast_loopback.MESSAGE
    assert choices.CALIBRATION_GROUP == multicast_loopback.GROUP
    assert choices.CALIBRATION_INTERFACE == multicast_loopback.INTERFACE


# ------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in (*KINDS, "scheme") for name in _registry(kind)]
)
def test_every_parameter_has_a_meaning_and_a_type(kind: str, name: str) -> None:
    for each in strategy_parameters(kind, name):
        assert each.meaning, each.name
        assert each.type, each.name


def test_a_meaning_that_refers_to_another_class_is_followed() -> None:
    class Base:
        """A base.

        Parameters
        ----------
        top, rounds,
        sweeps
            How many.

        Examples
        --------
        >>> 1
        1
        """

    class Heir(Base):
        """An heir."""

    assert [meaning_of(Heir, name) for name in ("top", "rounds", "sweeps", "none")] == ["How many."] * 3 + [
        ""
    ]
    assert "StreamsFirst" not in strategy_parameters("method", "hierarchical-gf")[0].meaning


def test_parameters_as_json_and_by_kind() -> None:
    found = json.loads(outcome("parameters", "partial", "--json").stdout)
    assert [each["kind"] for each in found["strategies"]] == ["method", "router"]
    [only] = json.loads(outcome("parameters", "partial", "--kind", "router", "--json").stdout)["strategies"]
    assert {"name", "type", "default", "required", "meaning"} == set(only["parameters"][0])
    names = json.loads(outcome("parameters", "--json").stdout)["names"]
    assert set(names) == set(KINDS)
    assert "joint" in names["method"]
    assert "Routers: channels" in outcome("parameters").stdout


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["plan", "--method", "mst"], "distance alpha calibration"),
        (["evaluate", "plan"], "alpha threshold"),
        (["compare", "--methods", "mst"], "distance threshold"),
        (["follow"], "period cost_m"),
        (["run"], "n_events"),
        (["generate", "feeds"], "n_flows"),
        (["serve"], "send"),
        (["explain"], "threshold"),
        (["partition", "--scheme", "cobas"], "kappa"),
    ],
)
def test_set_help_lists_the_parameters(words: list[str], shown: str) -> None:
    assert words[0] in SETTABLE
    for more in (["--set", "help"], ["--set=help"]):
        found = outcome(*words, *more)
        assert (found.returncode, found.stderr) == (0, "")
        assert shows(found.stdout, shown)


# ------------------------------------------------------------------------------------------- translation


def translated(command: str, given: dict[str, Any], **fields: Any) -> str:
    """Return the message of an error that a command translates."""
    found = ALL[command]
    assert isinstance(found, Command)
    with pytest.raises(ParameterError) as caught, found.translation(given):
        raise ParameterError(**fields)
    return str(caught.value)


@pytest.mark.parametrize("words", ALL)
def test_every_parameter_is_translated_into_its_option(words: str) -> None:
    for param in ALL[words].params:
        if param.param_type_name != "option":
            continue
        message = translated(words, {}, parameter=param.name, value=0, limit="at least 1")
        assert message == f"{param.opts[0]}=0: must be at least 1"


def test_names_that_differ_are_translated() -> None:
    every = {option for found in ALL.values() for param in found.params for option in param.opts}
    assert {option for options in OPTIONS_OF.values() for option in options} <= every
    for command, _ in COMMAND_OPTIONS:
        assert command in ALL
    assert translated("serve", {}, parameter="max_bytes", value=1).startswith("--store=1")
    assert translated("serve", {}, parameter="servers", value="x").startswith("--nats='x'")
    assert translated("serve", {"http_cert": "c"}, parameter="cert", value="c").startswith("--http-cert=")
    assert translated("subscribe", {}, parameter="name", value="").startswith("--subscriber=")
    assert translated("plan", {}, parameter="start", value="p").startswith("--from=")
    assert translated("users add", {}, parameter="roles", value="king").startswith("--role=")
    assert translated("restore", {}, parameter="path", value="b").startswith("FILE=")
    assert translated("match", {}, parameter="max_bytes", value=1) == "max_bytes=1"


def test_nested_keys_are_translated() -> None:
    settings = {"settings": ["seconds=-1"]}
    assert translated("plan", settings, parameter="seconds", value=-1).startswith("--set seconds=-1")
    limits = {"limit": ["subscriptions=0"], "subscriptions": None}
    assert translated("serve", limits, parameter="subscriptions", value=0) == "--limit subscriptions=0"
    assert translated("serve", {}, parameter="subscriptions", value=0) == "--subscriptions=0"
