// Stand-in: the kernel headers include it and use nothing of it.
#pragma once
