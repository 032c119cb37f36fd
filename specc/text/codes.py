"""Every code that specc has: its family, the exit status that follows, and what it says
in one line.

A code has one meaning for ever. `specc explain` and the exit status of every command
read this table, `docs/errors/README.md` is made of it (`make tables`), and tests compare
it with the codes that the sources use and with the pages that explain them.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Family(Enum):
    """Whose fault it is; the value is the exit status."""

    WARNING = 0
    GIVEN = 1
    """A spec, weights, a model or an input."""
    USAGE = 2
    """Words on the command line that name nothing."""
    ENVIRONMENT = 3
    """Files that cannot be read or written, and packages that are missing."""
    DIFFERENT = 4
    """`verify` found a difference."""
    UNTOLD = 5
    """`verify` cannot tell: the model is too sensitive to rounding, or with `--strict` not
    all of it was executed.
    """
    BUG = 70
    """A mistake in specc: EX_SOFTWARE of sysexits.h."""


class Code(NamedTuple):
    """What is known of a code without its page."""

    family: Family
    line: str

    @property
    def status(self) -> int:
        """The exit status of a command that ends with it."""
        return self.family.value


LINES = {
    "E0100": "more errors than are shown",
    "E0101": "the text does not fit the grammar",
    "E0102": "a bracket that is never closed",
    "E0103": "a closing bracket without its opening one",
    "E0104": "a text that is never closed",
    "E0105": "a word that other languages read as a value",
    "E0106": "a character that is not part of the language",
    "E0107": "`@` behind something that is not a call",
    "E0108": "a number that cannot be read",
    "E0109": "a spec that is too long",
    "E0110": "nested too deep",
    "E0111": "an expression that is too long",
    "E0112": "a file that is not UTF-8 text",
    "E0113": "the first line is missing or of another version",
    "E0114": "a file in the other syntax",
    "E0115": "a word that cannot be a name",
    "E0116": "given twice",
    "E0117": "a text that describes nothing",
    "E0118": "an escape that means nothing",
    "E0119": "an input behind an option",
    "E0120": "things that should pair up do not",
    "E0121": "a text that is not YAML",
    "E0122": "anchors, aliases, merge keys and tags",
    "E0123": "a second document",
    "E0124": "a key that is a list or a map",
    "E0125": "a list where a map is due, or the like",
    "E0126": "a key that is missing",
    "E0200": "there is no such code",
    "E0201": "an unknown key or option",
    "E0202": "a name that is not defined",
    "E0203": "a value of the wrong kind",
    "E0204": "there is no such block or operation",
    "E0205": "something that cannot be called",
    "E0206": "an operator between values it does not join",
    "E0207": "this is decided while compiling",
    "E0208": "an axis, item or row that is not there",
    "E0209": "this cannot stand in a spec that extends another",
    "E0210": "something is defined by itself",
    "E0211": "too few or too many inputs",
    "E0212": "an input is given twice",
    "E0213": "there is no such type",
    "E0214": "`return` does not fit",
    "E0215": "more names than results",
    "E0216": "a count that cannot be",
    "E0217": "a name is defined twice",
    "E0218": "a spec extends itself",
    "E0219": "there is no graph",
    "E0220": "a config value without a type",
    "E0221": "the graph has no such input or result",
    "E0222": "there is no such spec",
    "E0223": "a spec that takes too long to work out",
    "E0224": "a constant that is too large",
    "E0225": "an instance defines a name of what it extends",
    "E0226": "weights of a used spec under a pattern",
    "E0227": "no part of the config file for a used spec",
    "E0228": "a part of the config file that no used spec reads",
    "E0301": "a tensor of the wrong form",
    "E0302": "two lengths that differ meet",
    "E0303": "this is no length",
    "E0304": "`scan` does not find its axis",
    "E0305": "what a `scan` carries does not fit",
    "E0306": "a pattern that does not fit",
    "E0307": "the axes that attention needs",
    "E0308": "a weight of an impossible size",
    "E0309": "a length too large to be exact",
    "E0310": "a calculation without a result",
    "E0311": "a length that no input tells",
    "E0315": "a number that is known only when the model runs",
    "E0320": "a window longer than its axis",
    "E0321": "channels that cannot be shared out to groups",
    "E0322": "the same length beside a stride",
    "E0323": "padding that cannot be",
    "E0324": "not one number for each axis",
    "E0325": "padding in front that a stride does not divide",
    "E0326": "more rows are asked for than there are",
    "E0327": "a slice that does not step forward",
    "E0329": "an axis that cannot be resized so",
    "E0330": "more experts for a row than there are",
    "E0331": "an expert that looks beyond its row",
    "E0332": "rows, experts and gates that do not belong together",
    "E0333": "experts that only an input decides",
    "E0401": "a config value is missing",
    "E0403": "a value in the config file does not fit",
    "E0404": "a requirement of the spec does not hold",
    "E0405": "a config file of another model",
    "E0406": "no way to read a config value",
    "E0407": "an option of the command line that cannot be read",
    "E0408": "a pattern of `--tap` matches nothing",
    "E0410": "this is no configuration",
    "E0411": "the configuration is not valid JSON",
    "E0412": "the configuration gives a key twice",
    "E0413": "a number in the configuration is out of bounds",
    "E0414": "the configuration is not a table",
    "E0415": "the configuration is too deep or too large",
    "E0416": "tied weights are given different values",
    "E0417": "a number out of range",
    "E0419": "no spec reads checkpoints of this type",
    "E0420": "no graph is made for this architecture",
    "E0421": "the weights of the checkpoint are quantized",
    "E0422": "pictures that a model was trained on cannot be made",
    "E0423": "a chat template cannot be used",
    "E0424": "the model has no chat template",
    "E0425": "this is no chat",
    "E0426": "a chat template needs jinja2",
    "E0427": "a sentence-transformers directory asks for what is not followed",
    "E0435": "no frequencies hang on the length of texts",
    "E0501": "weights of the model are not in the checkpoint",
    "E0502": "the weights file is something else",
    "E0503": "weights have the wrong shape",
    "E0505": "tensors in the checkpoint are used by nothing",
    "E0506": "the weights file is damaged",
    "E0507": "the weights hold values that are not numbers",
    "E0508": "weights are of a type that does not fit",
    "E0509": "an index and its shards do not fit together",
    "E0510": "a weights rule is about weights the model does not have",
    "E0511": "a load rule cannot be applied",
    "E0512": "a weights file changed while it was read",
    "E0514": "the weights are a PyTorch checkpoint",
    "E0515": "the checkpoint holds the weights under several prefixes",
    "E0516": "this is no way to start a parameter",
    "E0517": "the weights hold values that the type asked for cannot",
    "E0518": "a folder does not say which weights are meant",
    "E0519": "two different weights of one name",
    "E0520": "weights without a name",
    "E0521": "this cannot be part of a name",
    "E0522": "a `load` rule that cannot be read",
    "E0523": "nothing says where the weights come from",
    "E0524": "a file of word vectors cannot be read",
    "E0525": "the seed cannot be used",
    "E0526": "two calls use the same weights and nothing says so",
    "E0527": "there are no weights to share",
    "E0529": "an adapter that cannot be merged",
    "E0530": "an adapter that cannot be read",
    "E0531": "an adapter that does not fit the checkpoint",
    "E0601": "this is no mask",
    "E0602": "this cannot be added to scores",
    "E0603": "a grid with the wrong axes",
    "E0604": "a mask or bias reads a position that the query does not have",
    "E0605": "a score that is no number for each pair",
    "E0606": "noise and the way to normalize do not fit",
    "E0607": "a score of queries and keys whose widths do not meet",
    "E0608": "a normalizer has no parameter for the scores",
    "E0609": "a normalizer does not give a weight for each score",
    "E0701": "the spec does not say what it generates",
    "E0702": "the growing input has no axis to grow along",
    "E0703": "what grows is no text of tokens",
    "E0711": "an operation reads positions that do not exist yet",
    "E0712": "an attention sees later positions",
    "E0713": "the newest position is mixed into earlier ones, or the first into those before it",
    "E0714": "the final length is not known while generating",
    "E0715": "a scan cannot run along the growing axis like this",
    "E0716": "a result cannot be generated",
    "E0717": "no step can be derived",
    "E0718": "a default changes while the text is written",
    "E0723": "a normalizer is not causal",
    "E0728": "a loop without a bound",
    "E0729": "`until` takes something else",
    "E0730": "what a loop carries has no row for each that may be done",
    "E0731": "generation has no such setting",
    "E0732": "a setting of generation is out of its range",
    "E0733": "two settings of generation do not go together",
    "E0751": "there is no such form of inputs and outputs",
    "E0752": "the model has something that a form of inputs and outputs has no place for",
    "E0753": "an option that means nothing here",
    "E0754": "a package has no such part",
    "E0801": "a package is missing",
    "E0802": "a file cannot be read",
    "E0803": "a path leads out of the spec's folder",
    "E0804": "there is not enough memory",
    "E0805": "the system refuses",
    "E0810": "there is no folder for the output",
    "E0811": "the output is not a place for a file",
    "E0812": "the output cannot be written",
    "E0813": "there is no space left for the output",
    "E0814": "the output is one of the inputs",
    "E0815": "writing failed",
    "E0816": "the ending of the output is not that of what is written",
    "E0820": "an argument of the Python interface is not of its kind",
    "E0821": "this opset cannot be written",
    "E0822": "there is no such target",
    "E0823": "the weights do not fit into one ONNX file",
    "E0824": "weights cannot be left where they are",
    "E0830": "a file does not belong to its package",
    "E0831": "the index of a package cannot be used",
    "E0832": "no such graph in the package",
    "E0833": "a file that specc did not write would be replaced",
    "E0840": "a file is not sound that specc reads",
    "E0841": "a WAV file cannot be used",
    "E0842": "a recording of another rate than the model hears",
    "E0843": "a recording is longer than the model hears",
    "E0844": "a preprocessor_config.json cannot be followed",
    "E0845": "the vocabulary of a transcript cannot be used",
    "E0846": "a file beside the weights is not in order",
    "E0847": "a generation_config.json cannot be followed",
    "E0850": "a pattern of weights names nothing",
    "E0851": "the target has no products by rounded weights",
    "E0852": "nothing of the model can be rounded",
    "E0853": "weights cannot be rounded in blocks of this size",
    "E0854": "a file to round weights by holds no inputs of the model",
    "E0855": "a product by rounded weights is not what whole numbers give",
    "E0856": "a model with rounded weights lost more than it may",
    "E0857": "the models that are compared are not of one spec",
    "E0858": "a word of `quantize` has another value",
    "E0859": "a model gives nothing to round weights by",
    "E0870": "a Parquet file cannot be read",
    "E0871": "a row of a file is too long",
    "E0872": "a CSV file does not name its columns",
    "E0873": "a file is no table that specc reads or writes",
    "E0874": "Parquet needs the package pyarrow",
    "E0875": "a folder holds the parts of another job",
    "E0876": "the plan of a job is damaged",
    "E0877": "a row of a file cannot be read",
    "E0878": "a row has nothing in a column that is read",
    "E0879": "a result has no row for each row of the data",
    "E0880": "which column is read for which input is not said",
    "E0881": "a file has changed since the job was planned",
    "E0882": "the process that computed a row died, twice",
    "E0883": "the processes that should do the work end before they begin",
    "E0884": "files of one job have different columns",
    "E0885": "the data has no such column",
    "E0886": "a column of the data has the name of a result",
    "E0887": "more rows have no result than is granted",
    "E0888": "Ray is missing, or its cluster cannot be reached",
    "E0889": "a graph cannot be served in batches",
    "E0890": "there is no such pass to look behind",
    "E0891": "texts cannot be written by themselves as they are asked for",
    "E0902": "reading or drawing a picture needs Pillow",
    "E0903": "a file is not a picture",
    "E0904": "a file is larger than specc reads",
    "E0905": "a file does not hold an array that can be used",
    "E0906": "JSON text is not an array of numbers",
    "E0907": "an array's element type does not fit the input",
    "E0908": "a character is not in the model's vocabulary",
    "E0909": "a vocabulary file is not in order",
    "E0910": "an input is missing or unknown",
    "E0911": "an input has the wrong number of axes",
    "E0912": "lengths of inputs do not agree",
    "E0913": "an id is outside its table",
    "E0914": "an input holds a value that is not a number",
    "E0915": "a model's reading record is not understood",
    "E0916": "a result cannot be shown as its reading says",
    "E0917": "the description inside a model cannot be used",
    "E0918": "a model that specc did not make",
    "E0921": "there is no such provider",
    "E0922": "the provider is not available here",
    "E0923": "ONNX Runtime cannot load the model",
    "E0924": "the model stopped while running",
    "E0925": "the weights of a model cannot be read",
    "E0926": "this is no ONNX model",
    "E0927": "this is no graph text that can be read",
    "E0928": "a line of the graph text is wrong",
    "E0929": "a model or its weights are not what was compiled",
    "E0930": "a model differs from the reference",
    "E0931": "there is no attention to draw",
    "E0932": "a model is too sensitive to rounding to be compared",
    "E0933": "verify did not execute all subgraphs of a model",
    "E0934": "the target cannot run a model that decodes by itself",
    "E0935": "a length leaves a remainder where the model divides it",
    "E0940": "this model's text needs the package tokenizers",
    "E0941": "the tokenizer cannot be used",
    "E0942": "the tokenizer beside a model is missing or is another one",
    "E0943": "the prompt is longer than the model can see",
    "E0944": "an input beside the growing one is not known for what is written",
    "E0945": "the model's tokens are no text",
    "E0946": "rows of training data do not fit the model",
    "E0947": "what a row wants of a model cannot be learned",
    "E0948": "no shipped spec is near a checkpoint",
    "E0949": "a model that is closed",
    "E0950": "two words of `quantize` that exclude each other",
    "E0951": "keys and values that cannot be kept in 8 bits",
    "E0953": "a PNG would have too many pixels",
    "E0954": "there is no such layer or head to draw",
    "E0955": "a drawing and a text are asked for at once",
    "E0956": "there is no graph to draw or to compare",
    "E0957": "config values for what is compiled already",
    "E0958": "a name that not every system can hold",
    "E0959": "a word is not in the model's vocabulary",
    "E0961": "the model's scores for the next token are no numbers",
    "E0962": "a text was broken off while it was written",
    "E0963": "nothing in which rows can share a scale",
    "E0964": "a target that cannot round rows together",
    "E0968": "serving an editor needs the package pygls",
    "E0969": "specc stopped in the middle of a text in an editor",
    "E0970": "a job is asked for as it cannot be",
    "E0975": "a graph grows along two inputs",
    "E0976": "rows of a stream that are no whole chunks",
    "E0977": "this is for another kind of model than a stream's",
    "E0978": "an input of a stream comes at the wrong time",
    "E0979": "the last rows of a stream fill no chunk",
    "E0980": "a number does not fit into 16 bits",
    "E0981": "lengths that are to be fixed are not those of the model",
    "E0982": "a value that only an instance can give",
    "E0983": "the command line is not understood",
    "E0984": "a spec is not in its canonical form",
    "E0985": "what stands among the words of a vocabulary is no text",
    "E0986": "a mistake in specc itself",
    "E0990": "a picture is larger than the frame that it lies in",
    "W0418": "keys of a config.json that nothing reads",
    "W0436": "positions beyond the original context need --context",
    "W0504": "tied weights differ in the checkpoint",
    "W0505": "a `share` that no two calls need",
    "W0528": "weights of a new head were drawn",
    "W0534": "an adapter changes weights that the graph does not have",
    "W0601": "padded positions can reach a result",
    "W0602": "rows of a batch mix",
    "W0755": "a token that ends texts is none of the model's",
    "W0756": "words that no text can be read as",
}
"""What each code says, as the heading of its page does."""

_FAMILIES = {
    Family.USAGE: {
        *("E0200", "E0407", "E0408", "E0525", "E0820", "E0821", "E0822"),
        *("E0832", "E0879", "E0880", "E0885", "E0890", "E0891", "E0921"),
        *("E0981", "E0954", "E0955", "E0957", "E0970", "E0977", "E0983"),
    },
    Family.ENVIRONMENT: {
        *("E0426", "E0801", "E0802", "E0804", "E0805", "E0810", "E0812", "E0813"),
        *("E0815", "E0874", "E0883", "E0888", "E0902", "E0922", "E0940", "E0968"),
    },
    Family.DIFFERENT: {"E0855", "E0856", "E0930", "E0980"},
    Family.UNTOLD: {"E0932", "E0933"},
    Family.BUG: {"E0986"},
}
"""The codes that are in a family other than that of their first letter."""


def _family(code: str) -> Family:
    for family, codes in _FAMILIES.items():
        if code in codes:
            return family
    return Family.WARNING if code.startswith("W") else Family.GIVEN


CODES = {code: Code(_family(code), line) for code, line in LINES.items()}


def exit_status(errors: Iterable[str]) -> int:
    """The exit status of a command that ended with these errors, which may be none.

    2 or 3 where all that is wrong is the command line or the environment: who mends that
    has mended everything. Else what `verify` says goes first, since it is asked for.
    """
    families = {CODES[code].family for code in errors}
    if not families:
        return 0
    if families in ({Family.USAGE}, {Family.ENVIRONMENT}):
        return families.pop().value
    found = families & {Family.DIFFERENT, Family.UNTOLD}
    return min((family.value for family in found), default=Family.GIVEN.value)
