"""Colours: one per name, the same everywhere, and told apart by every eye."""

from itertools import combinations

import numpy as np
import pytest

from dubito import plots
from dubito.plots import Series
from dubito.report.style import CYCLE, DARK, DOUBT, GREY, INK, RESERVED, Palette

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB
EYES = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


def linear(colour):
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def lines(*labels):
    return plots.lines("l", "L", [Series(label, [0.0], [0.0]) for label in labels], x_label="", y_label="")


@pytest.mark.parametrize("eye", EYES)
def test_colours_are_told_apart_by_every_eye(eye):
    seen = [lab(EYES[eye] @ linear(colour)) for colour in (*CYCLE, GREY, INK)]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 16


def test_shades_of_doubt_only_darken():
    lightness = [lab(linear(colour))[0] for colour in DOUBT]
    assert lightness == sorted(lightness, reverse=True)


def test_every_colour_has_a_form_for_dark_pages():
    assert {*CYCLE, *RESERVED.values()} <= DARK.keys()


def test_a_name_keeps_its_colour_in_all_figures_of_a_report():
    palette = Palette([lines("SGLD", "letters"), lines("noise", "letters")])
    free = [colour for colour in CYCLE if colour != RESERVED["sgld"]]
    assert palette["letters"] == free[0], "another name has its colour in these figures already"
    assert palette["noise"] == free[1]


def test_methods_keep_theirs_in_all_reports_however_they_are_spelt():
    assert Palette([lines("x")])["deep_ensemble"] == Palette([])["DeepEnsemble"] == Palette([])["deep ensemble"]


def test_unknown_names_start_over_when_colours_run_out():
    palette = Palette([lines(*map(str, range(9)))])
    assert palette["8"] == palette["0"]
