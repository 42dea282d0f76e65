#include <chrono>
#include <utility>
#include <vector>

#include <tutti/tutti.hpp>

// Values and resource types that must not compile: copies of owned objects, views of temporaries,
// numbers without a unit.
void values(tutti::Tensor tensor, tutti::ProcessGroup group, tutti::Work work,
            std::vector<float> floats) {
#ifdef TENSOR_COPY  // error: deleted
  tutti::Tensor other = tensor;
#else
  tutti::Tensor other = std::move(tensor);
#endif

#ifdef TENSOR_COPY_ASSIGNED  // error: deleted
  tensor = other;
#else
  tensor = std::move(other);
#endif

#ifdef VIEW_OF_A_TEMPORARY_TENSOR  // error: deleted
  (void)tutti::Tensor().view();
#else
  (void)tensor.view();
#endif

#ifdef VIEW_VARIABLE_OF_A_TEMPORARY_TENSOR  // error: deleted
  tutti::TensorView view = tutti::Tensor();
#else
  tutti::TensorView view = tensor;
#endif
  (void)view;

#ifdef MUTABLE_VIEW_OF_A_CONST_TENSOR  // error: conver|no viable
  tutti::TensorView seen = std::as_const(tensor).view();
#else
  tutti::ConstTensorView seen = std::as_const(tensor).view();
#endif
  (void)seen;

#ifdef SHAPED_VIEW_OF_A_TEMPORARY_VECTOR  // error: no matching
  (void)tutti::view(std::vector<float>{1, 2}, {1, 2});
#else
  (void)tutti::view(floats, {1, 2});
#endif

#ifdef GROUP_COPY  // error: deleted
  tutti::ProcessGroup second = group;
#else
  tutti::ProcessGroup second = std::move(group);
#endif

#ifdef WORK_COPY  // error: deleted
  tutti::Work twice = work;
#else
  tutti::Work twice = std::move(work);
#endif

#ifdef THEN_OF_A_WORK_THAT_IS_KEPT  // error: discards qualifiers|not viable|rvalue|no matching
  tutti::Work next = twice.then([] {});
#else
  tutti::Work next = std::move(twice).then([] {});
#endif
  next.wait();

#ifdef COALESCE_COPY  // error: deleted
  tutti::Coalesce together(second), copy(together);
#else
  tutti::Coalesce together(second);
#endif

#ifdef DEADLINE_WITHOUT_A_UNIT  // error: conver
  tutti::CallOptions options{.deadline = 5};
#else
  tutti::CallOptions options{.deadline = std::chrono::seconds(5)};
#endif
  (void)options;

#ifdef SMALL_FLOAT_FROM_FLOAT_UNSAID  // error: conver
  tutti::BFloat16 half = 1.5F;
#else
  tutti::BFloat16 half(1.5F);
#endif
  (void)half;
}
