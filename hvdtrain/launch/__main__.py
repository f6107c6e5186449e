import sys

from hvdtrain.launch.cli import main

sys.exit(main())
