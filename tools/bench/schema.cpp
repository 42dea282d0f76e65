#include "bench/schema.hpp"

namespace tutti::tool {

std::string_view schema() {
  return R"json({
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "$id": "tutti/bench-run-1",
  "title": "A run of tutti bench",
  "type": "object",
  "required": ["schema_version", "tool", "status", "started", "world", "config", "results"],
  "additionalProperties": false,
  "properties": {
    "schema_version": {"const": 1},
    "tool": {
      "type": "object",
      "required": ["name", "version", "git", "build"],
      "additionalProperties": false,
      "properties": {
        "name": {"const": "tutti"},
        "version": {"type": "string"},
        "git": {"type": "string", "description": "git describe, or unknown"},
        "build": {"type": "string", "description": "build type and compiler"}
      }
    },
    "status": {"enum": ["ok", "gate_failed", "wrong_data", "timeout", "interrupted", "error"]},
    "error": {"type": "string", "description": "one line, for timeout and error"},
    "started": {"type": "string", "format": "date-time"},
    "duration_s": {"type": "number", "minimum": 0},
    "argv": {"type": "array", "items": {"type": "string"}},
    "env": {
      "type": "object",
      "description": "allow-list only: TUTTI_* NCCL_* GLOO_* UCX_* FI_* CUDA_VISIBLE_DEVICES OMP_NUM_THREADS and --env-allow",
      "additionalProperties": {"type": "string"}
    },
    "backend": {
      "type": "object",
      "required": ["name", "version"],
      "additionalProperties": false,
      "properties": {
        "name": {"type": "string"},
        "version": {"type": "string"},
        "chosen_because": {"type": "string"},
        "iface": {"type": "string"},
        "transport": {"type": "string"}
      }
    },
    "world": {
      "type": "object",
      "required": ["size", "hosts"],
      "additionalProperties": false,
      "properties": {
        "size": {"type": "integer", "minimum": 1},
        "hosts": {"type": "integer", "minimum": 1},
        "threads": {"type": "boolean", "description": "the ranks are threads of one process"},
        "cpus": {"type": "integer", "minimum": 1, "description": "that the ranks of rank 0's host may use"},
        "oversubscribed": {"type": "boolean", "description": "more ranks on a host than CPUs that they may use"},
        "ranks": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["rank", "host", "pid", "device"],
            "additionalProperties": false,
            "properties": {
              "rank": {"type": "integer", "minimum": 0},
              "host": {"type": "string"},
              "pid": {"type": "integer"},
              "device": {"type": "string"},
              "pci": {"type": "string"},
              "numa": {"type": "integer"},
              "cpuset": {"type": "string"},
              "model": {"type": "string"}
            }
          }
        }
      }
    },
    "config": {
      "type": "object",
      "required": ["units"],
      "additionalProperties": false,
      "properties": {
        "units": {"const": "GB=1e9,time=us"},
        "mode": {"enum": ["throughput", "latency"]},
        "min_time_s": {"type": "number"},
        "iters": {"$ref": "#/$defs/auto_or_count"},
        "warmup": {"$ref": "#/$defs/auto_or_count"},
        "max_total_s": {"type": "number"},
        "timeout_s": {"type": "number"},
        "counts": {"type": "array", "items": {"type": "string"}, "description": "as --counts has them"},
        "order": {"enum": ["size", "random"]},
        "cold": {"type": "boolean"},
        "rank_agg": {"enum": ["max", "mean", "min", "rank0"]},
        "percentiles": {"type": "array", "items": {"type": "number"}},
        "check": {"enum": ["first", "all", "none"]},
        "seed": {"type": "integer", "minimum": 0},
        "samples": {"enum": ["none", "all"]}
      }
    },
    "notes": {"type": "array", "items": {"type": "string"}},
    "results": {
      "type": "array",
      "items": {
        "type": "object",
        "required": ["coll", "dtype", "op", "place", "bytes", "count", "ranks", "time_us", "algbw", "busbw", "wrong"],
        "additionalProperties": false,
        "properties": {
          "coll": {"type": "string"},
          "dtype": {"type": ["string", "null"], "description": "null for barrier"},
          "op": {"type": ["string", "null"], "description": "null where nothing is reduced"},
          "place": {"enum": ["out", "in", null], "description": "null for barrier"},
          "root": {"type": ["integer", "null"], "description": "null where there is none"},
          "layout": {"type": ["string", "null"], "description": "how S is cut into blocks, as --counts has it; null where it is not"},
          "counts": {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0}, "description": "elements of each rank's block; null when all alike"},
          "bytes": {"type": "integer", "minimum": 0, "description": "S of tutti bench --help-sizes"},
          "count": {"type": "integer", "minimum": 0, "description": "bytes in elements"},
          "ranks": {"type": "integer", "minimum": 1},
          "time_us": {
            "type": "object",
            "description": "of the iterations, each combined over the ranks by config.rank_agg",
            "required": ["n", "mean", "min", "p50", "p90", "p99", "max", "stdev"],
            "additionalProperties": false,
            "properties": {
              "n": {"type": "integer", "minimum": 1},
              "mean": {"type": "number"},
              "min": {"type": "number"},
              "max": {"type": "number"},
              "stdev": {"type": "number"}
            },
            "patternProperties": {"^p[0-9.]+$": {"type": "number"}}
          },
          "time_us_rank_mean": {"type": "array", "items": {"type": "number"}},
          "slowest_rank": {"type": "integer", "minimum": 0},
          "algbw": {"type": ["number", "null"], "description": "GB/s, from the mean over ranks and iterations; null for barrier"},
          "busbw": {"type": ["number", "null"], "description": "GB/s; null for barrier, and where no byte has to cross a link"},
          "pct_peak": {"type": ["number", "null"]},
          "wrong": {"type": ["integer", "null"], "minimum": 0, "description": "wrong elements on all ranks; null for barrier and with --check none"},
          "first_wrong": {
            "type": ["object", "null"],
            "required": ["rank", "array", "index", "expected", "got"],
            "additionalProperties": false,
            "properties": {
              "rank": {"type": "integer", "minimum": 0},
              "array": {"enum": ["in", "out"]},
              "index": {"type": "integer", "description": "outside of the array for a guard byte"},
              "expected": {"type": "string"},
              "got": {"type": "string"}
            }
          },
          "samples_us": {"type": "array", "items": {"type": "number"}, "description": "with --samples all"},
          "warmup_calls": {"type": "integer", "minimum": 0},
          "calls_per_sample": {"type": "integer", "minimum": 1, "description": "queued back to back, and a sample is their mean; above 1 on devices alone"},
          "flags": {"type": "array", "items": {"enum": ["few_samples", "noisy", "slow_first", "capped_mem"]}}
        }
      }
    },
    "fit": {
      "type": "array",
      "items": {
        "type": "object",
        "required": ["coll", "alpha_us", "beta_GBps", "n_half_bytes", "r2"],
        "additionalProperties": false,
        "properties": {
          "coll": {"type": "string"},
          "dtype": {"type": ["string", "null"]},
          "op": {"type": ["string", "null"]},
          "place": {"enum": ["out", "in", null]},
          "root": {"type": ["integer", "null"]},
          "layout": {"type": ["string", "null"]},
          "alpha_us": {"type": "number", "minimum": 0},
          "beta_GBps": {"type": "number", "exclusiveMinimum": 0},
          "n_half_bytes": {"type": "number", "minimum": 0},
          "r2": {"type": "number"}
        }
      }
    },
    "gates": {
      "type": "array",
      "items": {
        "type": "object",
        "required": ["rule", "matched", "pass"],
        "properties": {
          "rule": {"type": "string"},
          "matched": {"type": "integer"},
          "pass": {"type": "boolean"}
        }
      }
    }
  },
  "$defs": {
    "auto_or_count": {"oneOf": [{"const": "auto"}, {"type": "integer", "minimum": 0}]}
  }
}
)json";
}

}  // namespace tutti::tool
