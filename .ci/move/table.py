"""Old path -> new path, without .py; packages and modules alike. Applied longest first."""

LOOSE = """
ddlib/bound               ddlib/objective/bound
ddlib/nelbo               ddlib/objective/nelbo
ddlib/training            ddlib/objective/training
ddlib/speeds              ddlib/objective/learned_speeds
ddlib/reduce              ddlib/objective/metrics
ddlib/children            ddlib/parameterization/tree_softmax
ddlib/denoiser            ddlib/parameterization/logits
ddlib/likelihood          ddlib/samplers/likelihood
ddlib/categorical         ddlib/utils/categorical
ddlib/checks              ddlib/utils/validation
ddlib/exact               ddlib/utils/precision
ddlib/learned             ddlib/utils/positive
ddlib/noise               ddlib/utils/random
ddlib/printing            ddlib/utils/repr
ddlib/shapecheck          ddlib/utils/shapecheck
ddlib/names               ddlib/plugins/suggestions
ddlib/registry            ddlib/plugins/registry
ddlib/parts               ddlib/plugins/config
ddlib/parts/keys          ddlib/plugins/config/signature
ddlib/show                ddlib/plot/inspection
ddlib/diffusers           ddlib/integrations/diffusers
"""
PACKAGES = """
ddlib/processes/levelled      ddlib/processes/level_process
ddlib/processes/levels        ddlib/processes/level_chain
ddlib/processes/redraws       ddlib/processes/resampling_chain
ddlib/processes/redrawing     ddlib/processes/resampling_process
ddlib/processes/ways          ddlib/processes/tree_kernels
ddlib/processes/divergence    ddlib/processes/hierarchical_kl
ddlib/processes/mixing        ddlib/processes/interpolating
ddlib/processes/times         ddlib/processes/broadcasting
ddlib/processes/timed         ddlib/processes/optimal_times
ddlib/plot/bands              ddlib/plot/colors
ddlib/plot/canvas             ddlib/plot/axes
ddlib/plot/paths              ddlib/plot/trajectories
ddlib/plot/tree               ddlib/plot/tree_diagram
ddlib/paces/in_turn           ddlib/paces/sequential
ddlib/times/bell              ddlib/times/logit_normal
ddlib/times/draw              ddlib/times/draws
ddlib/guidance/places         ddlib/guidance/targets
ddlib/kernels/plans           ddlib/kernels/dispatch
ddlib/kernels/ranges          ddlib/kernels/subset_logsumexp
ddlib/kernels/siblings        ddlib/kernels/sibling_loss
ddlib/kernels/statistics      ddlib/kernels/cluster_mass
ddlib/kernels/evidence        ddlib/kernels/uniform_noise
ddlib/kernels/dense           ddlib/kernels/autograd_fallback
ddlib/kernels/block           ddlib/kernels/tile
ddlib/kernels/linear          ddlib/kernels/api
ddlib/kernels/gpu/online      ddlib/kernels/gpu/forward_kernel
ddlib/kernels/gpu/row         ddlib/kernels/gpu/inplace_softmax
ddlib/kernels/gpu/ranged      ddlib/kernels/gpu/tree_plan
ddlib/kernels/gpu/order       ddlib/kernels/gpu/vocab_order
ddlib/kernels/gpu/families    ddlib/kernels/gpu/grouped_gemm
ddlib/samplers/landing        ddlib/samplers/runtime/reverse_step
ddlib/samplers/guided         ddlib/samplers/runtime/guided
ddlib/samplers/network        ddlib/samplers/runtime/model
ddlib/samplers/head           ddlib/samplers/runtime/output_layer
ddlib/samplers/sight          ddlib/samplers/runtime/context
ddlib/samplers/course         ddlib/samplers/runtime/loop
ddlib/samplers/windows        ddlib/samplers/runtime/pace_sampling
ddlib/samplers/wording        ddlib/samplers/runtime/wording
ddlib/samplers/sharpening     ddlib/samplers/runtime/sharpening
ddlib/samplers/loop           ddlib/samplers/sampling
ddlib/samplers/ending         ddlib/samplers/stopping
ddlib/samplers/orders         ddlib/samplers/ordered
ddlib/samplers/corrector      ddlib/samplers/correctors/base
ddlib/samplers/corrected      ddlib/samplers/correctors/corrected
ddlib/samplers/gibbs          ddlib/samplers/correctors/gibbs
ddlib/samplers/edge_balance   ddlib/samplers/correctors/edge_balance
ddlib/samplers/forward_backward ddlib/samplers/correctors/forward_backward
ddlib/samplers/self_correction  ddlib/samplers/correctors/self_correction
ddlib/verification/verify     ddlib/verification/verifier
ddlib/verification/claim      ddlib/verification/framework/claim
ddlib/verification/cases      ddlib/verification/framework/inputs
ddlib/verification/causes     ddlib/verification/framework/dependencies
ddlib/verification/place      ddlib/verification/framework/blame
ddlib/verification/oracle     ddlib/verification/framework/oracle
ddlib/verification/process    ddlib/verification/claims/processes/process
ddlib/verification/reverse    ddlib/verification/claims/processes/reverse
ddlib/verification/draws      ddlib/verification/claims/processes/draws
ddlib/verification/discrete   ddlib/verification/claims/processes/discrete
ddlib/verification/levels     ddlib/verification/claims/processes/coupling
ddlib/verification/own_times  ddlib/verification/claims/processes/per_position_times
ddlib/verification/numerics   ddlib/verification/claims/processes/numerics
ddlib/verification/at_size    ddlib/verification/claims/processes/at_size
ddlib/verification/objective  ddlib/verification/claims/objective/bound
ddlib/verification/edges      ddlib/verification/claims/objective/edges
ddlib/verification/heads      ddlib/verification/claims/objective/tree_softmax
ddlib/verification/weighting  ddlib/verification/claims/objective/weighting
ddlib/verification/times      ddlib/verification/claims/objective/times
ddlib/verification/paces      ddlib/verification/claims/objective/paces
ddlib/verification/learned    ddlib/verification/claims/objective/learned
ddlib/verification/sampler    ddlib/verification/claims/samplers/sampler
ddlib/verification/kernel     ddlib/verification/claims/samplers/kernel
ddlib/verification/corrector  ddlib/verification/claims/samplers/corrector
ddlib/verification/particles  ddlib/verification/claims/samplers/particles
ddlib/verification/likelihood ddlib/verification/claims/samplers/likelihood
ddlib/verification/blocks     ddlib/verification/claims/samplers/blocks
ddlib/verification/guidance   ddlib/verification/claims/samplers/guidance
ddlib/verification/steered    ddlib/verification/claims/samplers/guidance_oracle
ddlib/verification/schedule   ddlib/verification/claims/schedule
ddlib/verification/hierarchy  ddlib/verification/claims/hierarchy
ddlib/verification/arguments  ddlib/verification/claims/arguments
"""
MODELS = """
ddlib_models/adopted          ddlib_models/hf/base
ddlib_models/causal_lm        ddlib_models/hf/causal_lm
ddlib_models/masked_lm        ddlib_models/hf/masked_lm
ddlib_models/recall           ddlib_models/hf/kv_cache
ddlib_models/low_rank         ddlib_models/hf/lora
ddlib_models/auto             ddlib_models/hf/auto
ddlib_models/attention        ddlib_models/attention/backends
ddlib_models/rules            ddlib_models/attention/masks
ddlib_models/sight            ddlib_models/attention/sight
ddlib_models/cache            ddlib_models/kv_cache
ddlib_models/dit              ddlib_models/dit/network
ddlib_models/body             ddlib_models/dit/trunk
ddlib_models/heads            ddlib_models/dit/heads
ddlib_models/tree             ddlib_models/dit/tree_head
ddlib_models/embedding        ddlib_models/dit/embedding
ddlib_models/layers           ddlib_models/dit/layers
ddlib_models/passes           ddlib_models/dit/inputs
ddlib_models/sizes            ddlib_models/dit/presets
ddlib_models/pretrained       ddlib_models/io/pretrained
ddlib_models/weights          ddlib_models/io/safetensors
ddlib_models/descriptions     ddlib_models/io/json_files
ddlib_models/manifest         ddlib_models/io/manifest
ddlib_models/constants        ddlib_models/io/constants
ddlib_models/hub/records      ddlib_models/hub/known_families
ddlib_models/hub/native       ddlib_models/hub/config_mapping
ddlib_models/hub/reading      ddlib_models/hub/files
ddlib_models/hub/special      ddlib_models/hub/special_tokens
ddlib_models/hub/probe        ddlib_models/diagnostics/leave_one_out
"""
RECIPES = """
recipes/sampling              recipes/generation/sampling
recipes/prompt                recipes/generation/prompt
recipes/console/drafts        recipes/generation/drafts
recipes/generative            recipes/evaluation/generative
recipes/report                recipes/evaluation/report
recipes/engine/exact          recipes/evaluation/exact
recipes/engine/publish        recipes/engine/export
recipes/engine/abilities      recipes/engine/model_protocols
recipes/config/knowledge      recipes/config/run_context
recipes/config/limits         recipes/config/validation
recipes/config/page           recipes/config/help
recipes/saved                 recipes/model_io
recipes/measure               recipes/metrics
recipes/measure/given         recipes/metrics/conditioned
recipes/measure/terms         recipes/metrics/bound
recipes/measure/likelihoods   recipes/metrics/likelihood
recipes/watch                 recipes/logging
recipes/film                  recipes/visualization
recipes/lexicon               recipes/embeddings
"""

PATHS = dict(line.split() for line in (LOOSE + PACKAGES + MODELS + RECIPES).split("\n") if line)

NEW_PACKAGES = {
    "ddlib/objective": "Objectives: the bound, the training loss, and the numbers that are reported.",
    "ddlib/parameterization": "Meaning of a network's logits: cavity, posterior, and child distributions of a hierarchy.",
    "ddlib/utils": "Helpers of all packages: validation, randomness, precision, printing.",
    "ddlib/plugins": "Plug-ins: registered names, and objects built from plain values.",
    "ddlib/integrations": "Adapters to other libraries.",
    "ddlib/samplers/runtime": "Machinery of a sampling run: the model wrapper, the loop over steps, the reverse step.",
    "ddlib/samplers/correctors": "Correctors: steps that keep the distribution of the states at a time.",
    "ddlib/verification/framework": "Framework of the claims: inputs, oracles, comparisons, dependencies, blame.",
    "ddlib/verification/claims": "Claims that ``dd.verify`` checks, by the kind of object.",
    "ddlib/verification/claims/processes": "Claims about processes.",
    "ddlib/verification/claims/objective": "Claims about the bound, the training loss, times and weightings.",
    "ddlib/verification/claims/samplers": "Claims about samplers, correctors, guidance and likelihoods.",
    "ddlib_models/attention": "Attention: back ends behind one interface, and masks as rules.",
    "ddlib_models/dit": "DiT, the diffusion transformer, with its heads and embeddings.",
    "ddlib_models/hf": "Backbones from Hugging Face transformers.",
    "ddlib_models/io": "Files of a network: weights, configuration, manifest.",
    "ddlib_models/diagnostics": "Diagnostics of pretrained networks.",
    "recipes/generation": "Generation: sampling options, prompts, drafts on the console.",
    "recipes/evaluation": "Evaluation: exact likelihoods, scores of samples, the report.",
}
"""Packages that do not exist yet, with the docstring of their ``__init__.py``."""

EXPORTS = {
    "ddlib_models/attention": ("backends", ["BACKENDS", "SDPA", "Attention", "Flex", "Varlen", "XFormers", "backend",
                                            "kept_mask", "owners"]),
    "ddlib_models/dit": ("network", ["DiT"]),
}
"""What a new package re-exports because a module of its name held it: (module, names)."""
