#include "proxy.hpp"

namespace emu {

Proxy proxy;

void fence_proxy_async() {
  count_step();
  proxy.fence();
}

}  // namespace emu
