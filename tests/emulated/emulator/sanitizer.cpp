// The run time of UndefinedBehaviorSanitizer, reduced to failing the launch.
//
// The compilers' own run time either goes on, into the crash it has just reported, or ends the
// process. The handlers' names and the leading fields of their arguments are an interface that GCC
// and Clang share; -fno-sanitize-recover selects the handlers that do not return.
#include "thread.hpp"

#ifdef EMU_SANITIZE

namespace emu {

// What every handler's first argument starts with.
struct SanitizerSite {
  const char* file;
  unsigned line;
  unsigned column;
};

struct TypeMismatch {
  SanitizerSite site;
  const void* type;
  unsigned char log2_alignment;
  unsigned char access;
};

[[noreturn]] inline void fail_undefined(const SanitizerSite* site, const char* what) {
  record_failure("undefined behaviour at %s:%u: %s", site->file, site->line, what);
  abandon_thread();
}

}  // namespace emu

extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(emu::TypeMismatch* mismatch,
                                                                  uintptr_t pointer) {
  const uintptr_t alignment = uintptr_t{1} << mismatch->log2_alignment;
  emu::fail_undefined(&mismatch->site, pointer == 0               ? "use of a null pointer"
                                       : pointer % alignment != 0 ? "misaligned access"
                                                                  : "access outside an object");
}

#define EMU_UNDEFINED(handler, what)                                                      \
  extern "C" [[noreturn]] void __ubsan_handle_##handler(emu::SanitizerSite* site) {       \
    emu::fail_undefined(site, what);                                                      \
  }

EMU_UNDEFINED(out_of_bounds_abort, "index outside an array")
EMU_UNDEFINED(shift_out_of_bounds_abort, "shift by a negative or too large count")
EMU_UNDEFINED(add_overflow_abort, "signed overflow of +")
EMU_UNDEFINED(sub_overflow_abort, "signed overflow of -")
EMU_UNDEFINED(mul_overflow_abort, "signed overflow of *")
EMU_UNDEFINED(negate_overflow_abort, "signed overflow of unary -")
EMU_UNDEFINED(divrem_overflow_abort, "division by zero or its overflow")
EMU_UNDEFINED(pointer_overflow_abort, "overflow of a pointer")
EMU_UNDEFINED(load_invalid_value_abort, "load of a value that its type lacks")
EMU_UNDEFINED(builtin_unreachable, "unreachable code reached")
EMU_UNDEFINED(missing_return, "end of a function without return")
EMU_UNDEFINED(vla_bound_not_positive_abort, "array of no positive length")
EMU_UNDEFINED(nonnull_arg_abort, "null argument")
EMU_UNDEFINED(nonnull_return_v1_abort, "null result")
EMU_UNDEFINED(invalid_builtin_abort, "built-in called with zero")

#undef EMU_UNDEFINED

#endif  // EMU_SANITIZE
