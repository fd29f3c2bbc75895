"""Functions that a server's message can name: steps, losses and drift terms of fnlkit.

A site resolves the names in a message only with this table and never imports anything else. If a method, loss or optimizer
has a new function that runs on clients, add a line here. tests/deploy/test_allowed.py fails if a line is missing.
"""

_NAMES = {
    "fnlkit.client.drift": "control_variate dynamic proximal towards_global",
    "fnlkit.client.losses.adjusted": "adjusted_distilled keep_class_shares label_learning logit_adjusted make_label_logits",
    "fnlkit.client.losses.calibration": "entropy_minimized temperature_scaled",
    "fnlkit.client.losses.centroids": "near_centroids",
    "fnlkit.client.losses.consistency": "self_regularized",
    "fnlkit.client.losses.contrastive": "contrastive cores peer remember_label_shares",
    "fnlkit.client.losses.correction": "backward_given forward_corrected forward_given importance_reweighted",
    "fnlkit.client.losses.cross_entropy": "cross_entropy kept_cross_entropy smoothed_cross_entropy",
    "fnlkit.client.losses.distillation": "embedding_distilled logit_distilled",
    "fnlkit.client.losses.exchange": "exchanged",
    "fnlkit.client.losses.filtered": "consistent",
    "fnlkit.client.losses.mixmatch": "mixmatch",
    "fnlkit.client.losses.mixture": "early_learning entropy_regularized label_mixture remember_predictions",
    "fnlkit.client.losses.refurbish": "joint make_labels refurbished remember_history",
    "fnlkit.client.losses.robust": "generalized_cross_entropy normalized_and_reverse_cross_entropy symmetric_cross_entropy",
    "fnlkit.client.losses.tempered": "bi_tempered",
    "fnlkit.methods.akd": "measure_square",
    "fnlkit.methods.clipfl": "judge_publicly",
    "fnlkit.methods.dividemix": "divide",
    "fnlkit.methods.fedcorr": "adaptive_proximal find_and_relabel relabel_confident score_locally",
    "fnlkit.methods.feddiv": "filter_samples fit_filter update_bias",
    "fnlkit.methods.feddpcont": "release_labels",
    "fnlkit.methods.fedefc": "estimate_transition score_accuracy",
    "fnlkit.methods.fedelc": "merge_prediction",
    "fnlkit.methods.fednoro": "score_classes",
    "fnlkit.methods.fedrn": "select_clean tell_reliability",
    "fnlkit.methods.forward": "keep_anchor_transition prune",
    "fnlkit.methods.jointopt": "take_soft_labels",
    "fnlkit.methods.local": "keep_own take_own",
    "fnlkit.methods.na_fedavg": "estimate_own_level keep_scores score_samples",
    "fnlkit.methods.nnc": "vote",
    "fnlkit.methods.oracle": "take_truth",
    "fnlkit.methods.rhfl": "align tell_knowledge",
    "fnlkit.methods.rofl": "move_centroids take_centroids",
    "fnlkit.methods.t_revision": "revise",
    "fnlkit.server.optimizers.ditto": "keep_personal take_personal",
    "fnlkit.server.optimizers.fedbn": "keep_own wear_own",
    "fnlkit.server.optimizers.feddyn": "recall_dual update_dual",
    "fnlkit.server.optimizers.scaffold": "recall_control update_control",
    "fnlkit.server.selection": "local_loss",
}
COMPONENTS = frozenset((module, name) for module, names in _NAMES.items() for name in names.split())


def may_be_named(module, name):
    """Return whether a server can run the function `name` of `module` at a site.

    Parameters
    ----------
    module, name : object
        Values from a message, not validated.
    """
    return isinstance(module, str) and isinstance(name, str) and (module, name) in COMPONENTS
