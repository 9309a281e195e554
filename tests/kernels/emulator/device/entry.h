// How the launcher calls a kernel and learns its signature.
#pragma once
#include <stdio.h>

#include <type_traits>
#include <utility>

#include "bfloat16.h"
#include "float8.h"
#include "runtime.h"

namespace cuemu {

// The names that a `Kernel` declares its parameters by, appended to `text`.
template <class T>
void append_type(char* text) {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_pointer_v<U>) {
    using Pointee = std::remove_pointer_t<U>;
    strcat(text, std::is_const_v<Pointee> ? "const *" : "*");
    append_type<Pointee>(text);
  } else if constexpr (std::is_same_v<U, __half>) {
    strcat(text, "float16");
  } else if constexpr (std::is_same_v<U, __nv_bfloat16>) {
    strcat(text, "bfloat16");
  } else if constexpr (std::is_same_v<U, __nv_fp8_e4m3>) {
    strcat(text, "float8_e4m3");
  } else if constexpr (std::is_same_v<U, bool> || std::is_void_v<U>) {
    strcat(text, std::is_void_v<U> ? "void" : "bool");
  } else {
    const char* kind = std::is_floating_point_v<U> ? "float"
                       : !std::is_integral_v<U>    ? "struct"
                       : std::is_signed_v<U>       ? "int"
                                                   : "uint";
    sprintf(text + strlen(text), "%s%d", kind, (int)(8 * sizeof(U)));
  }
}
// Each type ends with a semicolon.
template <class... A>
const char* signature(void (*)(A...)) {
  static char text[32 * (sizeof...(A) + 1)];
  text[0] = 0;
  ((append_type<A>(text), strcat(text, ";")), ...);
  return text;
}

// values[i] points at the i-th argument, as with cuLaunchKernel.
template <class... A>
struct Call {
  void (*kernel)(A...);
  void** values;
  template <size_t... I>
  void run(std::index_sequence<I...>) const {
    kernel(*static_cast<std::remove_reference_t<A>*>(values[I])...);
  }
};
template <class... A>
int launch_kernel(void (*kernel)(A...), const Launch& how, void** values, char* error, size_t bytes) {
  Call<A...> call{kernel, values};
  const auto body = [](void* c) { static_cast<Call<A...>*>(c)->run(std::index_sequence_for<A...>{}); };
  return launch(how, body, &call, error, bytes);
}

}  // namespace cuemu

// What the builder appends to a source, once for every kernel that was asked for.
#define CUEMU_EXPORT(symbol, ...)                                                                                    \
  extern "C" __attribute__((visibility("default"))) int symbol(const cuemu::Launch* how, void** values, char* error, \
                                                               size_t bytes) {                                       \
    return cuemu::launch_kernel(&__VA_ARGS__, *how, values, error, bytes);                                           \
  }                                                                                                                  \
  extern "C" __attribute__((visibility("default"))) const char* symbol##_signature() {                               \
    return cuemu::signature(&__VA_ARGS__);                                                                           \
  }
