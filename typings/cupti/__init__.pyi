# See cupti.pyi.

from cupti import cupti as cupti
