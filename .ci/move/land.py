import sys
p=sys.argv[1]+'/CHANGELOG.md'
s=open(p).read()
a=s.index('### Changed\n\n')+len('### Changed\n\n')
s=s[:a]+'''- Modules have moved into packages of one noun: `ddlib.objective`, `parameterization`, `utils`, `plugins`, `integrations`, `samplers.runtime`,
  `samplers.correctors`, `verification.framework` and `verification.claims`; `ddlib_models.dit`, `attention`, `hf`, `io` and `diagnostics`;
  `recipes.generation`, `evaluation`, `metrics`, `model_io`, `embeddings`, `logging` and `visualization`. `dd.*`, entry points, YAML keys and
  flags are as they were (`tests/snapshots`). Former paths of `ddlib` and `ddlib_models` import with a `DeprecationWarning` for one release.
'''+s[a:]
open(p,'w').write(s)
