"""The stubs say what the module has: every class, every member, every argument."""

import ast
import inspect
import pathlib

import maru
import maru.errors
import pytest
from maru import _maru

PACKAGE = pathlib.Path(maru.__file__).parent
STUB = ast.parse((PACKAGE / "_maru.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
# What object and the interpreter give every class, and what only says "no".
COMMON = set(dir(object)) | {"__module__", "__weakref__", "__reduce__"}


def members(node: ast.ClassDef) -> dict:
    return {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}


def decorators(function: ast.FunctionDef) -> set:
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def test_the_package_is_typed_and_exports_what_it_says():
    assert (PACKAGE / "py.typed").exists()
    exported = {name for name, value in vars(maru).items() if inspect.isclass(value)}
    functions = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}
    assert exported | functions | {"__version__"} == set(maru.__all__)
    assert functions == {name for name, value in vars(_maru).items() if inspect.isbuiltin(value)}
    errors = {name for name, value in vars(maru.errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert errors | set(CLASSES) == exported
    for name in errors:
        assert issubclass(getattr(maru, name), maru.MaruError) and getattr(maru, name).__doc__


def test_every_class_of_the_module_is_in_the_stub():
    native = {name for name, value in vars(_maru).items() if inspect.isclass(value)}
    assert native == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_member_is_in_the_stub_and_the_other_way_round(name):
    native = getattr(_maru, name)
    own = {member for member in vars(native) if member not in COMMON and not member.startswith("__")}
    typed = {member for member in members(CLASSES[name]) if not member.startswith("__")}
    assert own == typed
    special = {member for member in members(CLASSES[name]) if member.startswith("__")}
    assert special <= set(vars(native)), special - set(vars(native))


@pytest.mark.parametrize("name", CLASSES)
def test_every_argument_is_in_the_stub(name):
    native = getattr(_maru, name)
    for member, function in members(CLASSES[name]).items():
        found = inspect.getattr_static(native, member)
        if "property" in decorators(function):
            assert inspect.isgetsetdescriptor(found), f"{name}.{member} is no property"
            continue
        if member.startswith("__") and member != "__new__":
            continue
        if member == "__new__":
            signature = inspect.signature(native)
            typed = function.args.args[1:]
        else:
            assert ("staticmethod" in decorators(function)) == isinstance(found, staticmethod), f"{name}.{member}"
            signature = inspect.signature(getattr(native, member))
            typed = function.args.args
        parameters = list(signature.parameters.values())
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        keyword = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        assert positional == [argument.arg for argument in typed], f"{name}.{member}"
        assert keyword == [argument.arg for argument in function.args.kwonlyargs], f"{name}.{member}"
        defaults = [ast.literal_eval(value) for value in function.args.defaults if value]
        assert [p.default for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty] == defaults
        defaults = [ast.literal_eval(value) for value in function.args.kw_defaults if value]
        assert [p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty] == defaults


@pytest.mark.parametrize("name", CLASSES)
def test_everything_is_documented(name):
    native = getattr(_maru, name)
    assert native.__doc__
    for member in members(CLASSES[name]):
        if not member.startswith("__"):
            assert inspect.getattr_static(native, member).__doc__, f"{name}.{member}"


def test_options_in_signatures_are_options(region):
    """Options are read from a dictionary, so the signature could say what is not there, and the other way round."""
    for call, name in ((maru.Region.open, "Region.open"), (region.session, "Region.session")):
        said = [p for p in inspect.signature(call).parameters.values() if p.kind is p.KEYWORD_ONLY]
        with pytest.raises(maru.ArgumentError) as error:
            call("x", __nothing=1)
        known = error.value.wanted.removeprefix("one of ").split(", ")
        assert sorted(known) == sorted([p.name for p in said] + (["path"] if name == "Region.open" else []))
        # The default, said, is as good as the default unsaid.
        try:
            call("/nowhere/at/all", **{p.name: p.default for p in said})
        except maru.OpenError as refused:
            assert "/nowhere/at/all" in str(refused)


def test_words_in_the_stub_are_words():
    """Each Literal of an argument is taken where one of its words is wanted."""
    words = {
        node.targets[0].id: ast.literal_eval(node.value.slice)
        for node in STUB.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
    }
    for alias, option in (("_Mode", "mode"), ("_Format", "format"), ("_Medium", "medium"), ("_Scope", "scope")):
        with pytest.raises(maru.ArgumentError) as error:
            maru.Region.open("x", **{option: "nothing of the kind"})
        assert error.value.wanted == f"one of {', '.join(words[alias])}"
