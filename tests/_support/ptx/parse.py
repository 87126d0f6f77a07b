"""PTX text to kernels: parameters, registers, variables, labels and instructions. No semantics here."""

import re
from dataclasses import dataclass, field

from .errors import PTXError
from .scalars import bits, literal

_STATEMENT_TOKEN = re.compile(r"[{};]|[^{};]+")
_LABEL = re.compile(r"\s*([\w$]+)\s*:(?!:)")
_NAME = re.compile(r"(?<![\w$%.])%?[A-Za-z_$][\w$]*")
_VARIABLE = re.compile(
    r"(?P<linkage>(?:\.(?:extern|visible|weak)\s+)*)\.(?P<space>shared|global|const|local)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)(?P<length>\[\d*\])?\s*(?:=\s*(?P<init>.*))?",
    re.S,
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    r"(?:\.ptr(?:\s+\.(?:global|shared|const|local))?(?:\s+\.align\s+\d+)?\s+)?(?P<name>[\w$]+)(?:\[(?P<length>\d+)\])?"
)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)\{")


@dataclass(frozen=True)
class Instruction:
    """`@!guard mnemonic operands`; `text` is what the file says."""

    index: int
    guard: str | None
    negated: bool
    mnemonic: str
    operands: tuple[str, ...]
    text: str

    @property
    def stem(self) -> str:
        return self.mnemonic.split(".")[0]


@dataclass
class Variable:
    """A variable of a state space: its size in bytes and, if it is initialised, its bytes."""

    name: str
    space: str
    align: int
    size: int
    extern: bool
    data: bytes | None


@dataclass
class Kernel:
    name: str
    params: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (offset, size)
    param_bytes: int = 0
    max_threads: int = 1024
    exact_threads: int | None = None
    registers: dict[str, str] = field(default_factory=dict)  # name -> type
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # label -> index of the next instruction
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)  # .branchtargets
    shared: dict[str, int] = field(default_factory=dict)  # name -> offset
    shared_bytes: int = 0
    local: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0
    dynamic: list[str] = field(default_factory=list)  # extern shared arrays: they start behind the static ones


@dataclass
class Program:
    kernels: dict[str, Kernel]
    variables: list[Variable]  # global and const


def parse(text: str) -> Program:
    """Parse a whole PTX file."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = re.sub(r"^[ \t]*\.(?:loc|file|version|target|address_size)\b[^\n]*", "", text, flags=re.M)
    text = re.sub(r"\.section\s+[\w.]+\s*\{[^}]*\}", " ", text)
    bodies, outside, end = [], [], 0
    for entry in _ENTRY.finditer(text):
        close = _closing_brace(text, entry.end())
        bodies.append((entry, text[entry.end() : close]))
        outside.append(text[end : entry.start()])
        end = close + 1
    outside.append(text[end:])
    variables = _module_variables(" ".join(outside))
    kernels = {}
    for entry, body in bodies:
        kernel = Kernel(entry[1])
        _header(kernel, entry[2] or "", entry[3])
        for variable in variables:
            if variable.space == "shared":
                _place(kernel, variable)
        _Body(kernel).read(body)
        kernel.shared_bytes = -(-kernel.shared_bytes // 16) * 16
        for name in kernel.dynamic:
            kernel.shared[name] = kernel.shared_bytes
        kernels[kernel.name] = kernel
    return Program(kernels, [v for v in variables if v.space in ("global", "const")])


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.start()
    raise PTXError("the body of a kernel is not closed")


def _module_variables(text: str) -> list[Variable]:
    text = re.sub(r"\.func\b[^{;]*\{.*?\n\}", " ", text, flags=re.S)  # a call of one is refused where it stands
    statements = re.findall(r"\.(?:shared|global|const)\b(?:[^;{]|\{[^}]*\})*;", text)
    externs = [re.search(r"\.extern\s+" + re.escape(s), text) is not None for s in statements]
    return [_variable((".extern " if extern else "") + s[:-1]) for s, extern in zip(statements, externs, strict=True)]


def _variable(statement: str) -> Variable:
    match = _VARIABLE.fullmatch(statement.strip())
    if match is None:
        raise PTXError(f"cannot parse the variable: {' '.join(statement.split())[:200]}")
    element = bits(match["type"]) // 8
    length = match["length"]
    size = element * (int(length[1:-1] or 0) if length else 1)
    data = None
    if match["init"] is not None:
        values = [literal(v.strip()) for v in match["init"].strip().strip("{}").split(",")]
        if any(v is None for v in values):
            raise PTXError(f"{match['name']}: only integer initialisers are supported")
        mask = (1 << 8 * element) - 1
        data = b"".join((int(v or 0) & mask).to_bytes(element, "little") for v in values).ljust(size, b"\0")
    align = int(match["align"] or element)
    return Variable(match["name"], match["space"], align, size, "extern" in match["linkage"], data)


def _place(kernel: Kernel, variable: Variable) -> None:
    if variable.extern:
        kernel.dynamic.append(variable.name)
    elif variable.space == "shared":
        kernel.shared_bytes = -(-kernel.shared_bytes // variable.align) * variable.align
        kernel.shared[variable.name] = kernel.shared_bytes
        kernel.shared_bytes += variable.size
    else:
        kernel.local_bytes = -(-kernel.local_bytes // variable.align) * variable.align
        kernel.local[variable.name] = kernel.local_bytes
        kernel.local_bytes += variable.size


def _header(kernel: Kernel, params: str, directives: str) -> None:
    for text in filter(str.strip, params.split(",")):
        match = _PARAM.fullmatch(" ".join(text.split()))
        if match is None:
            raise PTXError(f"{kernel.name}: cannot parse the parameter: {text.strip()}")
        element = bits(match["type"]) // 8
        size, align = element * int(match["length"] or 1), int(match["align"] or element)
        offset = -(-kernel.param_bytes // align) * align
        kernel.params[match["name"]] = (offset, size)
        kernel.param_bytes = offset + size
    for name, counts in re.findall(r"\.(maxntid|reqntid)\s+([\d,\s]+)", directives):
        threads = 1
        for count in counts.split(","):
            threads *= int(count)
        kernel.max_threads = threads
        if name == "reqntid":
            kernel.exact_threads = threads


class _Body:
    """Reads the statements of one kernel. Names declared in an inner `{ }` (inline assembly) get a suffix."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scopes: list[dict[str, str]] = [{}]
        self.scopes_seen = 0

    def read(self, body: str) -> None:
        pending, in_vector = "", False
        for token in _STATEMENT_TOKEN.findall(body):
            if token == "{" and not pending.strip():
                self.scopes_seen += 1
                self.scopes.append({})
            elif token in "{}" and (pending.strip() or in_vector):
                pending, in_vector = pending + token, token == "{"
            elif token == "}":
                self.scopes.pop()
            elif token == ";":
                self.statement(" ".join(pending.split()))
                pending = ""
            else:
                while not pending.strip() and (label := _LABEL.match(token)):
                    if label[1] in self.kernel.labels:
                        raise PTXError(f"label {label[1]} stands twice")
                    self.kernel.labels[label[1]] = len(self.kernel.instructions)
                    token = token[label.end() :]
                pending += token
        if pending.strip():
            raise PTXError(f"statement without an end: {pending.strip()[:200]}")

    def statement(self, text: str) -> None:
        if not text:
            return
        if text.startswith(".reg"):
            self.declare(text)
        elif text.startswith((".shared", ".local", ".extern .shared")):
            _place(self.kernel, _variable(text))
        elif text.startswith(".branchtargets"):
            label = next(k for k, v in reversed(self.kernel.labels.items()) if v == len(self.kernel.instructions))
            self.kernel.tables[label] = tuple(t.strip() for t in text[len(".branchtargets") :].split(","))
        elif text.startswith(".pragma"):
            return
        elif text.startswith("."):
            raise PTXError(f"directive is not supported: {text}")
        else:
            self.instruction(text)

    def declare(self, text: str) -> None:
        match = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if match is None:
            raise PTXError(f"cannot parse: {text}")
        for name in match[2].split(","):
            family = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name.strip())
            names = [f"{family[1]}{i}" for i in range(int(family[2]))] if family else [name.strip()]
            for each in names:
                unique = each if len(self.scopes) == 1 else f"{each}_scope{self.scopes_seen}"
                self.scopes[-1][each] = unique
                self.kernel.registers[unique] = match[1]

    def rename(self, operand: str) -> str:
        def lookup(match: re.Match[str]) -> str:
            return next((s[match[0]] for s in reversed(self.scopes) if match[0] in s), match[0])

        return operand if len(self.scopes) == 1 else _NAME.sub(lookup, operand)

    def instruction(self, text: str) -> None:
        match = re.fullmatch(r"(?:@(!?)\s*(%?[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", text)
        if match is None:
            raise PTXError(f"cannot parse: {text}")
        operands = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(])+", match[4])
        guard = self.rename(match[2]) if match[2] else None
        names = tuple(self.rename(o.strip()) for o in operands if o.strip())
        index = len(self.kernel.instructions)
        self.kernel.instructions.append(Instruction(index, guard, bool(match[1]), match[3], names, text))
