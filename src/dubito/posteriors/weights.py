"""What posteriors over weights share: draws are weight vectors, whether stored or made when they are asked for."""

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from dubito.functions import Functions, WeightFunctions
from dubito.layout import Layout
from dubito.net import Net
from dubito.posteriors.base import Posterior, check_draws
from dubito.posteriors.storage import Samples


class WeightPosterior(Posterior):
    """A distribution over weight vectors [net | likelihood]."""

    @abstractmethod
    def vectors(self, n: int, seed: int = 0) -> tuple[Samples, Sequence[int]]:
        """The samples that n draws come from, and which of them."""

    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every coordinate, (D,) each."""

    def draw(self, n: int, seed: int = 0) -> Functions:
        return WeightFunctions(self.net, self.noise_layout, *self.vectors(n, seed))

    def thetas(self, n: int, seed: int = 0) -> Tensor:
        """n whole vectors (n, D): those that `draw` uses; stored ones come once each, all of them when n is larger."""
        check_draws("n", n)
        samples, index = self.vectors(n, seed)
        return samples.get(index)[0].to(self.net.device)

    def sample(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        views = named(self.net, self.thetas(n, seed))
        return {name: value.clone() for name, value in views.items()}

    @property
    def noise_layout(self) -> Layout:
        """The likelihood's own parameters behind the weights."""
        return Layout.of(self.likelihood.parameters())


def named(net: Net, thetas: Tensor) -> dict[str, Tensor]:
    """Vectors (n, D) as named parameters (n, *shape); fixed ones repeat."""
    free = net.layout.split(thetas[:, : net.layout.size])
    fixed = {n: v.expand(len(thetas), *v.shape) for n, v in net.constants().items()}
    order = [n for n, _ in net.module.named_parameters()]
    return {n: free[n] if n in free else fixed[n] for n in order}
