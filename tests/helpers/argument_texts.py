"""Which texts fit the arguments that a function takes, in one notation of calls or another."""

from __future__ import annotations

from edge_rt.package.reader import open_package
from edge_rt.text.answer_format import AnswerFormat
from edge_rt.text.grammar import TokenTable
from edge_rt.text.json_schema import read_schema
from edge_rt.text.tokenizer import Tokenizer


def closed(**properties):
    """Return the schema of an object of these properties alone; those in capitals are required."""
    required = [name for name in properties if name.isupper()]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def fitting(package, rules_of, end=""):
    """Return a function that says whether a text fits a schema whole; `rules_of` gives its grammar, `end` included."""
    package = open_package(package)
    tokenizer = Tokenizer.from_file(package.file("tokenizer.json"), info=package.manifest.tokenizer)
    table = TokenTable(tokenizer, tokenizer.vocab_size)

    def fits(schema, text):
        matcher = table.matcher(AnswerFormat("calls", "\n".join(rules_of(read_schema(schema)[0]))))
        tokens = tokenizer.encode_spans([(text + end, False)], continues=True)
        if not matcher.allows_all(tokens):
            return False
        matcher.take(tokens)
        return matcher.may_end

    return fits
