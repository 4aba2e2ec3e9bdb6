from torch.utils.data import DataLoader, Subset

from template.data.dataset import collate
from template.data.phantom import Phantom


class Broken(Phantom):
    def share(self, rank, count):
        return range(8 * rank, min(8 * rank + 8, count))

    def train_dataloader(self):
        dataset = self._dataset(self.cases("train"), [])
        share = self.share(self.trainer.global_rank, len(dataset))
        return DataLoader(Subset(dataset, share), batch_size=4 // self.trainer.world_size, collate_fn=collate)


class Healthy(Broken):
    def share(self, rank, count):
        return range(rank, count, self.trainer.world_size)
