"""Read the sizes of a model that a script builds of its own classes: `GPTConfig(n_layer=12)`."""

import re
from collections.abc import Iterator

from zerowiz.core.script.facts import Binding, OwnSizes, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.probe.script.model.model import constants
from zerowiz.probe.script.reader import Reader, agree
from zerowiz.probe.script.source import HF_LIBRARIES

# Names of nanoGPT, llama2.c and transformers. `num_layers` is one of an LSTM as well.
_LAYERS = frozenset({"n_layer", "n_layers", "num_hidden_layers"})
_WIDTH = frozenset({"d_model", "dim", "hidden_size", "n_embd"})
_VOCABULARY = frozenset({"n_vocab", "vocab_size"})
_CONFIG = re.compile(r"(Config|Args)$")


def with_own_sizes(facts: ScriptFacts, read: Reader) -> ScriptFacts:
    """Add the sizes of a script's own model, where it shows how deep and how wide that is."""
    layers, width, vocabulary = (_size(read, names) for names in (_LAYERS, _WIDTH, _VOCABULARY))
    if not (layers.seen and width.seen):
        return facts
    return replace(
        facts, own_sizes=OwnSizes(layers=layers, hidden_size=width, vocab_size=vocabulary)
    )


def _size(read: Reader, names: frozenset[str]) -> Binding:
    """What a call of a config gives one of these names, else such an option or constant."""
    given = [binding for binding in _given(read, names) if binding.seen]
    if given:
        return agree(given)
    named = read.named(names)
    return named if named.seen else agree(constants(read, names))


def _given(read: Reader, names: frozenset[str]) -> Iterator[Binding]:
    for call in read.source.calls:
        library = read.source.origin(call.node.func).partition(".")[0]
        if library not in HF_LIBRARIES and _CONFIG.search(call.method):
            given = read.source.keywords(call)[0]
            yield from (read.bind(given[name], call, name) for name in names & given.keys())
