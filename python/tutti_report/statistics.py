"""Tests of ranks, and the bootstrap. All p-values are two-sided."""
import numpy as np
from scipy import stats

MOST_EXACT = 60
RESAMPLES = 2000


def _two_sided(probabilities, total):
    """`probabilities` of all sums from 0."""
    return min(1.0, 2 * min(probabilities[:total + 1].sum(), probabilities[total:].sum()))


def _doubled_ranks(values):
    """Ties have their mean rank, so twice the ranks are whole numbers."""
    return np.rint(2 * stats.rankdata(values)).astype(int)


def signed_rank_p(differences):
    """The probability that differences whose signs are those of fair coins are on one side as much as these. Each counts
    as its rank by size, as in Wilcoxon's test, but at most as a third of their number, so that a few disturbed ones do
    not hide the others. Zeros are left out."""
    differences = np.asarray(differences, float)
    differences = differences[differences != 0]
    ranks = np.minimum(_doubled_ranks(abs(differences)), max(2, 2 * len(differences) // 3))
    probabilities = np.zeros(ranks.sum() + 1)
    probabilities[0] = 1
    for rank in ranks:
        probabilities[rank:] = probabilities[rank:] + probabilities[:len(probabilities) - rank]
        probabilities[:] /= 2
    return _two_sided(probabilities, ranks[differences > 0].sum())


def rank_sum_p(a, b):
    """The Mann-Whitney test: the probability that values of one distribution, divided into two lists by chance, differ in
    their ranks as much as `a` and `b`. SciPy's exact test knows no ties."""
    if len(a) + len(b) > MOST_EXACT:
        p = float(stats.mannwhitneyu(a, b, method="asymptotic").pvalue)
        return 1.0 if np.isnan(p) else p  # All values are equal.
    ranks = _doubled_ranks([*a, *b])
    ways = np.zeros((len(a) + 1, ranks.sum() + 1))  # [number of values, sum of their ranks]
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :ways.shape[1] - rank].copy()
    return _two_sided(ways[-1] / ways[-1].sum(), ranks[:len(a)].sum())


def adjusted(p_values):
    """The p-values of tests that are made together (Holm, 1979): any false rejection has at most the level."""
    p_values = np.asarray(p_values, float)
    order = np.argsort(p_values, kind="stable")
    result = np.empty_like(p_values)
    result[order] = np.minimum(np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1)), 1)
    return result


def interval(statistic, *samples):
    """The percentile bootstrap interval of 95 %, the same in every run. `statistic` gets resamples as rows."""
    random = np.random.default_rng(1)
    draws = [np.asarray(each)[random.integers(len(each), size=(RESAMPLES, len(each)))] for each in samples]
    return np.percentile(statistic(*draws), [2.5, 97.5], method="inverted_cdf")
