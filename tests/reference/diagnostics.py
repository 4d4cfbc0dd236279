"""Sink and outlier diagnostics of one forward pass (the trace of model.Model.forward).

A row is one (layer, head, query t) with t >= FIRST_QUERY; p_j is the weight that multiplies v_j in that row (after
clipping; 0 for a key that is not visible), p_null its null mass. All logarithms are natural. A mean over rows weighs
every row alike. With T <= FIRST_QUERY tokens there are no rows and the attention diagnostics are undefined.

bos_mass        mean over rows of p_0
sink_rate       share of rows with p_0 > SINK_THRESHOLD
entropy         mean over rows of -(p_null ln p_null + sum_j p_j ln p_j), with 0 ln 0 = 0
secondary_sink  largest, over keys j with 1 <= j <= T - 1 - MIN_LATER_QUERIES, of the mean of p_j over the rows with
                t > j (0 if there is no such key)
null_mass       mean over rows of p_null
kurtosis        mean over sub-layer inputs and all tokens of Pearson's kurtosis E[(x - mu)^4] / var^2 over the d
                entries. Sub-layer inputs: the vector that enters attn(h) or ffn(h), before its norm, of every
                sub-layer, and the vector that enters output_norm: 2 * layers + 1 vectors per token
max_abs         largest |x| in the same vectors, over all tokens
"""
import numpy as np

FIRST_QUERY = 4             # below this, even uniform attention puts more than 0.2 on the first key
SINK_THRESHOLD = 0.3
MIN_LATER_QUERIES = 8       # a key seen by fewer later queries is too noisy to be called a sink


def diagnose(trace):
    """-> dict of the seven numbers above."""
    p = np.stack(trace["attention"])                                   # (layers, H, T, T)
    null = np.stack(trace["null"])[:, :, FIRST_QUERY:]                 # (layers, H, rows)
    rows = p[:, :, FIRST_QUERY:]
    n_tokens = p.shape[-1]
    secondary = [p[:, :, max(FIRST_QUERY, j + 1):, j].mean() for j in range(1, n_tokens - MIN_LATER_QUERIES)]
    return {
        "bos_mass": rows[..., 0].mean(),
        "sink_rate": (rows[..., 0] > SINK_THRESHOLD).mean(),
        "entropy": (_p_log_p(rows).sum(axis=-1) + _p_log_p(null)).mean(),
        "secondary_sink": max(secondary, default=0.0),
        "null_mass": null.mean(),
        "kurtosis": np.mean([entry["kurtosis"] for entry in trace["inputs"]]),
        "max_abs": max(entry["max_abs"].max() for entry in trace["inputs"]),
    }


def _p_log_p(p):
    return -p * np.log(np.where(p > 0, p, 1))
