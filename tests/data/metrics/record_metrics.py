"""Records metrics of scikit-learn 1.9 and quantiles of numpy 2.4: record_metrics.py > metrics.txt

A line per case: the dtype of the scores; the scores; the targets; the weights (empty: none);
AUROC and average precision; the precisions; the recall at each; the quantiles; the value of each.
Average precision and recall are nan without positive rows, for which scikit-learn warns and gives 0 or 1."""
import random
import warnings

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

warnings.simplefilter("ignore")
rng = np.random.default_rng(21)
random.seed(21)
PRECISIONS = [0, 0.25, 1 / 3, 0.5, 0.9, 1]
QUANTILES = [0, 0.005, 0.1, 0.25, 1 / 3, 0.5, 0.77, 0.999, 1]


def numbers(values, digits=17):
    return " ".join(f"{float(value):.{digits}g}" for value in values)


def record(dtype, scores, targets, weights):
    targets = np.asarray(targets)
    scores = np.asarray(scores).astype(dtype).astype(np.float64)  # The library computes in double.
    positives = targets.sum() if weights is None else weights[targets == 1].sum()
    auroc = average = np.nan
    recalls = [np.nan] * len(PRECISIONS)
    if positives > 0:
        auroc = roc_auc_score(targets, scores, sample_weight=weights)
        average = average_precision_score(targets, scores, sample_weight=weights)
        precision, recall, _ = precision_recall_curve(targets, scores, sample_weight=weights)
        recalls = [recall[precision >= p].max() for p in PRECISIONS]
    quantiles = np.quantile(scores, QUANTILES) if weights is None else np.quantile(
        scores, QUANTILES, weights=weights, method="inverted_cdf")
    print(f"{'f32' if dtype == np.float32 else 'f64'};{numbers(scores)};{numbers(targets)};"
          f"{'' if weights is None else numbers(weights)};{numbers([auroc, average])};"
          f"{numbers(PRECISIONS)};{numbers(recalls)};{numbers(QUANTILES)};{numbers(quantiles)}")


def scores_of(kind, n):
    scores = rng.normal(size=n) * 10.0 ** random.choice((-3, 0, 3))
    return {"distinct": scores, "ties": np.round(rng.normal(size=n) * 2) / 2, "equal": np.full(n, 0.25)}[kind]


def weights_of(kind, n):
    if kind == "none":
        return None
    weights = {"random": rng.random(n), "whole": rng.integers(0, 4, n).astype(float),
               "wide": 10.0 ** rng.uniform(-8, 8, n)}[kind]
    weights[0] = 1
    return weights


for n in (1, 2, 9, 50):
    for kind in ("distinct", "ties", "equal"):
        for weighted in ("none", "none", "random", "whole", "wide"):
            targets = (rng.random(n) < random.choice((0.1, 0.5, 0.9))).astype(int)
            record(random.choice((np.float32, np.float64)), scores_of(kind, n), targets, weights_of(weighted, n))
for targets in ([0, 0, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]):  # One class; all right; all wrong.
    for weights in (None, np.array([0.5, 1, 2])):
        record(np.float64, [1, 2, 3], targets, weights)
