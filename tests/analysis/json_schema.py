"""As much of JSON Schema 2020-12 as docs/*.schema.json use; an unknown keyword is an error, so that
a schema can't say more than is checked."""

import json
import re

NOTES = {"$schema", "title", "description"}


def is_type(value, name):
    if name in ("integer", "number") and isinstance(value, bool):
        return False
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
             "integer": int, "number": (int, float)}
    return isinstance(value, kinds[name])


def problems(schema, value, where="file"):
    """-> what is wrong with `value`; members that the schema doesn't describe are wrong, too."""
    found = []
    say = lambda text: found.append(f"{where}: {text}, got {json.dumps(value)[:80]}")
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    for key, wanted in schema.items():
        if key in NOTES:
            continue
        if key == "type":
            names = wanted if isinstance(wanted, list) else [wanted]
            if not any(is_type(value, name) for name in names):
                say(f"expected {' or '.join(names)}")
        elif key == "const":
            if value != wanted or type(value) is not type(wanted):
                say(f"expected {wanted}")
        elif key == "enum":
            if value not in wanted:
                say(f"expected one of {wanted}")
        elif key == "minimum":
            if number and not value >= wanted:
                say(f"expected at least {wanted}")
        elif key == "maximum":
            if number and not value <= wanted:
                say(f"expected at most {wanted}")
        elif key == "pattern":
            if isinstance(value, str) and not re.search(wanted, value):
                say(f"expected a match of {wanted}")
        elif key == "minItems":
            if isinstance(value, list) and len(value) < wanted:
                say(f"expected {wanted} items")
        elif key == "required":
            if isinstance(value, dict):
                found += [f"{where}.{name}: missing" for name in wanted if name not in value]
        elif key == "properties":
            if isinstance(value, dict):
                for name, item in value.items():
                    if name not in wanted:
                        found.append(f"{where}.{name}: not in the schema")
                    else:
                        found += problems(wanted[name], item, f"{where}.{name}")
        elif key == "items":
            if isinstance(value, list):
                for i, item in enumerate(value):
                    found += problems(wanted, item, f"{where}[{i}]")
        else:
            raise ValueError(f"json_schema.py does not know the keyword {key}")
    return found
