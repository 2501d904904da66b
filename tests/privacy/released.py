"""Independent values for blocks, groups and replaced examples: plain sums over fine grids, nothing of the library."""

import itertools
import math

import numpy as np
from scipy.stats import norm


def law_of_sum(weights, rates):
    """The values of S and their probabilities, one by one."""
    points, masses = np.zeros(1), np.ones(1)
    for weight, rate in zip(weights, rates, strict=True):
        points = np.concatenate((points, points + weight))
        masses = np.concatenate((masses * (1.0 - rate), masses * rate))
    return points, masses


def densities(block, y, mirrored):
    """P and Q of a block (points, masses, noise) at some y."""
    points, masses, noise = block
    p = norm.pdf(y[:, None], points, noise) @ masses
    return p, norm.pdf(y[:, None], -points, noise) @ masses if mirrored else norm.pdf(y, 0.0, noise)


def delta_of_blocks(blocks, epsilon, mirrored=False, nodes=3001, cells=2**21):
    """Both directions of delta: distributions of losses on a fine lattice, convolved; good to about 1e-6.

    Every loss is split between its two neighbours on the lattice, so that its mean is kept.
    """
    found = []
    for remove in (True, False):
        total, low, step = np.ones(1), 0.0, None
        spans, parts = [], []
        for block in blocks:
            points, _, noise = block
            low_y = (-points.max() if mirrored else 0.0) - 12.0 * noise
            y = np.linspace(low_y, points.max() + 12.0 * noise, nodes * 20)
            p, q = densities(block, y, mirrored)
            loss = np.log(p) - np.log(q)
            mass = (p if remove else q) * (y[1] - y[0])
            loss = loss if remove else -loss
            parts.append((loss, mass))
            spans.append((loss.min(), loss.max()))
        step = sum(high - least for least, high in spans) / cells * 2.0
        for loss, mass in parts:
            least = loss.min()
            place = (loss - least) / step
            cell = np.floor(place).astype(int)
            share = place - cell
            size = int(cell.max()) + 2
            pmf = np.bincount(cell, mass * (1.0 - share), size) + np.bincount(cell + 1, mass * share, size)
            total, low = np.convolve(total, pmf) if total.size == 1 else _fft_convolve(total, pmf), low + least
        losses = low + step * np.arange(total.size)
        found.append(float(np.sum(total * np.maximum(-np.expm1(epsilon - losses), 0.0))))
    return max(found)


def _fft_convolve(first, second):
    size = first.size + second.size - 1
    padded = 1 << (size - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(first, padded) * np.fft.rfft(second, padded), padded)[:size]


def blocks_of(weights, rates, sigmas, ends, group=1):
    """Blocks (points, masses, noise) of steps up to these ends."""
    blocks = []
    for start, stop in itertools.pairwise((0, *ends)):
        part = slice(start, stop)
        points, masses = law_of_sum(np.repeat(weights[part], group), np.repeat(rates[part], group))
        noise = math.sqrt(float(np.sum((weights[part] * sigmas[part]) ** 2)))
        blocks.append((points, masses, noise))
    return blocks
