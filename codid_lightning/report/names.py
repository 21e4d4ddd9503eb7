"""How methods and data sets are written in tables and figures."""

METHODS = {
    "truth": "Ground truth",
    "base": "BASE",
    "mmd": "MMD",
    "dann": "DANN",
    "coral": "CORAL",
    "irm": "IRM",
    "rex": "REx",
    "dts": "DTS",
    "ide_vc": "IDE-VC",
    "mi": "MI",
    "a_cmi": "A-CMI",
    "hfs": "HFS",
    "coda": "CODA",
    "id_facevc": "ID-FaceVC",
    "diosc": "DIOSC",
    "km_mp": "CoDID-km-MP",
    "km_mc": "CoDID-km-MC",
    "km_id": "CoDID-km-ID",
    "km_sd": "CoDID-km-SD",
    "km": "CoDID-km",
    "itkm": "CoDID-itkm",
    "itdpm": "CoDID-itdpm",
    "wo_sc": "CoDID-w/o-SC",
    "ua": "CoDID-UA",
    "t": "CoDID-T",
    "codid": "CoDID",
}
EXTENSIONS = {  # ours, in a table of their own
    "coda_conv": "CODA, convolutional",
    "cell_balanced": "CellBalanced",
    "group_dro": "GroupDRO",
    "balanced_modes": "CellBalanced, modes by propensity",
    "counterfactual": "Counterfactual",
    "codid_modes": "CoDID, modes by propensity",
    "codid_plus": "CoDID+",
}
DATASETS = {
    "toy": "Toy",
    "toy_nine_modes": "Toy, nine modes",
    "toy_four_attributes": "Toy, four attributes",
    "colored_digits": "Colored digits",
    "cmnist": "CMNIST",
    "cfashion_mnist": "CFashion-MNIST",
    "canine_bg": "Canine-BG",
    "uci_har": "UCI-HAR",
    "realworld": "RealWorld",
    "hhar": "HHAR",
    "mfd": "MFD",
    "cwru": "CWRU",
}


def method_title(name: str) -> str:
    """The method as the paper writes it; methods of one's own keep their name."""
    return {**METHODS, **EXTENSIONS}.get(name, name)


def dataset_title(name: str) -> str:
    """The data set as the paper writes it; data sets of one's own keep their name."""
    return DATASETS.get(name, name)


def method_order(name: str) -> tuple[int, str]:
    """Sort key: the paper's order, methods of one's own just before CoDID."""
    known = list(METHODS)
    return (known.index(name) if name in METHODS else len(known) - 2, name)
