"""One JSON schema for every keyword of draft 2020-12."""

from __future__ import annotations

from typing import Any, Final

_DEFS: Final = {"count": {"type": "integer", "minimum": 1, "maximum": 99}, "word": {"$anchor": "w", "type": "string",
                "pattern": "^[a-z]{1,8}$"}}  # fmt: skip


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False, **more,
    }  # fmt: skip


_INT: Final = {"type": "integer", "minimum": 0, "maximum": 999}
_TEXT: Final = {"type": "string", "maxLength": 12}

ENFORCED: Final[dict[str, Any]] = {
    "type": _object({"a": {"type": "boolean"}, "b": {"type": ["null", "integer"]}}, "a"),
    "enum": {"enum": ["red", 3, None, {"a": [1]}]},
    "const": {"const": {"a": "b", "c": [1, True]}},
    "minLength": {"type": "string", "minLength": 3, "maxLength": 9},
    "maxLength": {"type": "string", "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}\\d{3}$"},
    **{f"format {name}": {"type": "string", "format": name} for name in
       ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")},
    "minimum": {"type": "integer", "minimum": 17, "maximum": 120},
    "maximum": {"type": "number", "minimum": 0, "maximum": 2.5},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": 5, "maximum": 8},
    "exclusiveMaximum": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    "multipleOf": {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 7},
    "items": {"type": "array", "items": _INT, "maxItems": 4},
    "prefixItems": {"type": "array", "prefixItems": [_TEXT, _INT], "items": False},
    "minItems": {"type": "array", "items": _INT, "minItems": 2, "maxItems": 3},
    "maxItems": {"type": "array", "items": _TEXT, "maxItems": 2},
    "properties": _object({"a": _INT, "b": _TEXT}, "a"),
    "required": _object({"a": _INT, "b": _INT, "c": _INT}, "c", "a"),
    "additionalProperties": {"type": "object", "additionalProperties": _INT, "maxProperties": 3},
    "patternProperties": {"type": "object", "patternProperties": {"^n_[a-z]{1,4}$": _INT},
                          "additionalProperties": False, "maxProperties": 3},
    "minProperties": {"type": "object", "additionalProperties": _INT, "minProperties": 1, "maxProperties": 2},
    "maxProperties": {"type": "object", "additionalProperties": _TEXT, "maxProperties": 1},
    "allOf": {"allOf": [_object({"a": _INT, "b": _TEXT}), {"required": ["b"]}]},
    "anyOf": {"anyOf": [_INT, _TEXT, _object({"a": _INT}, "a")]},
    "oneOf": {"oneOf": [_object({"k": {"const": "a"}, "v": _INT}, "k"), _object({"k": {"enum": ["b", "c"]}}, "k")]},
    "$ref": {"$defs": _DEFS, **_object({"n": {"$ref": "#/$defs/count"}, "w": {"$ref": "#w"}}, "n", "w")},
    "$defs": {"$ref": "#/$defs/tree", "$defs": {"tree": _object({"v": _INT, "l": {"type": "array", "maxItems": 2,
              "items": {"$ref": "#/$defs/tree"}}}, "v", "l")}},
    "$anchor": {"$defs": _DEFS, "$ref": "#w"},
    "true": {"type": "array", "prefixItems": [True], "items": False},
    "false": _object({"a": _INT, "b": False}),
}  # fmt: skip
"""Keyword -> a schema that is enforced."""

IDLE: Final[dict[str, Any]] = {
    "title": {"title": "A number", "description": "Any", "default": 1, "examples": [2], "deprecated": False,
              "readOnly": True, "writeOnly": False, "$comment": "none", **_INT},
    "$schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/a", **_INT},
    "uniqueItems": {"type": "array", "items": _INT, "maxItems": 3, "uniqueItems": False},
    "contains": {"type": "array", "items": _INT, "maxItems": 3, "contains": {"const": 1}, "minContains": 0},
    "minContains": {"type": "array", "items": _INT, "maxItems": 3, "minContains": 2},
    "maxContains": {"type": "array", "items": _INT, "maxItems": 3, "maxContains": 2},
    "if": {"if": {"const": 1}, **_INT},
    "then": {"then": {"const": 1}, **_INT},
    "else": {"else": {"const": 1}, **_INT},
    "propertyNames": _object({"a": _INT}, propertyNames={"type": "string"}),
    "dependentRequired": _object({"a": _INT, "b": _INT}, "b", dependentRequired={"a": ["b"]}),
    "dependentSchemas": _object({"a": _INT}, dependentSchemas={"z": {"required": ["y"]}}),
    "unevaluatedProperties": {"type": "object", "properties": {"a": _INT}, "unevaluatedProperties": False},
    "unevaluatedItems": {"type": "array", "prefixItems": [_INT], "unevaluatedItems": False},
    "$dynamicAnchor": {"$dynamicAnchor": "node", **_INT},
}  # fmt: skip
"""Keyword -> a schema where it does not constrain anything, or can be said otherwise."""

WARNED: Final[dict[str, Any]] = {
    "format": {"type": "string", "maxLength": 8, "format": "colour"},
    "contentEncoding": {"contentEncoding": "base64", **_TEXT},
    "contentMediaType": {"contentMediaType": "text/html", **_TEXT},
    "contentSchema": {"contentSchema": {}, **_TEXT},
    "minlength": {"minlength": 3, **_TEXT},
}
"""Keyword -> a schema where it is not enforced, which is said."""

REFUSED: Final[dict[str, Any]] = {
    "not": {"not": {"type": "string"}},
    "if": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "contains": {"type": "array", "items": _INT, "contains": {"const": 1}},
    "uniqueItems": {"type": "array", "items": _INT, "uniqueItems": True},
    "propertyNames": {"type": "object", "propertyNames": {"minLength": 2}},
    "dependentRequired": _object({"a": _INT, "b": _INT}, dependentRequired={"a": ["b"]}),
    "dependentSchemas": _object({"a": _INT}, dependentSchemas={"a": {"required": ["b"]}}),
    "dependencies": _object({"a": _INT, "b": _INT}, dependencies={"a": ["b"]}),
    "unevaluatedItems": {"type": "array", "anyOf": [{"prefixItems": [_INT]}, {}], "unevaluatedItems": False},
    "unevaluatedProperties": {"type": "object", "anyOf": [{"required": ["a"]}, {}], "unevaluatedProperties": False},
    "oneOf": {"oneOf": [_INT, {"type": "number"}]},
    "minProperties": {"type": "object", "minProperties": 3},
    "$dynamicRef": {"$dynamicRef": "#node"},
}
"""Keyword -> a schema where it would have to be enforced, and cannot be."""

KEYWORDS: Final[dict[str, Any]] = {
    f"{name} ({kind})": schema
    for kind, schemas in (("enforced", ENFORCED), ("idle", IDLE), ("warned", WARNED), ("refused", REFUSED))
    for name, schema in schemas.items()
}
