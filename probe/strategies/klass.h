// KLASS: a position takes its token when it is sure and its distribution has stopped moving.
// Source: KLASS, arXiv 2511.05664; shkim0116/KLASS `src/model/llada_klass.py:
// stable_confident_decode`, alg "klass". Softmax and KL are float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace blockscope {

/// Which of several ready positions take their token (the authors' `unmask_strategy`): all, the
/// most confident one, or the one that moved least at this step.
enum class KlassChoose { kAll, kMaxConf, kMinKl };

inline const std::vector<std::string> kKlassChooseWords{"all", "max_conf", "min_kl"};

/// What one sequence remembers of each position's last steps. A bidirectional model predicts
/// positions behind its block too, and as in the authors' code their history goes on from block to
/// block; a block-causal model has not seen a block before, so there each begins anew.
class KlassMemory {
 public:
  /// Takes in distributions [R, V] float64 of absolute `positions` [R] -> KL(now || the step that
  /// predicted the position last) in nats, both under a logarithm with 1e-12 added. Before a
  /// position's first step all probabilities count as 0, so its KL is near 27.6 nats less the
  /// entropy. On a device the distributions stay there, and the KLs are waited for.
  std::vector<double> update(const std::vector<int64_t>& positions, const at::Tensor& probability);

  /// Whether a position has been predicted before.
  bool known(int64_t position) const { return tracks_.contains(position); }

  /// Whether a position has been predicted at `history` steps and the KL of each of the last was
  /// below `threshold`.
  bool stable(int64_t position, double threshold, int64_t history) const;

  /// Frees what is known of positions before `begin`.
  void forget_before(int64_t begin);

 private:
  struct Track {
    at::Tensor before;       // [V] float64
    std::vector<double> kl;  // oldest first
  };
  std::map<int64_t, Track> tracks_;  // by position
};

/// Masked positions that are stable with `confidence` > `threshold`, of several those that `choose`
/// says; without any, the `due` most confident masked ones. Ties go to the lower position.
/// Ascending. `kl`: of this step, [B] as KlassMemory::update returned it; only for kMinKl.
std::vector<int64_t> select_klass(const std::vector<double>& confidence,
                                  const std::vector<bool>& stable, const std::vector<bool>& masked,
                                  double threshold, int64_t due,
                                  KlassChoose choose = KlassChoose::kAll,
                                  const std::vector<double>& kl = {});

}  // namespace blockscope
